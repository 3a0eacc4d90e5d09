"""A whole model as a GGUF file, which llama.cpp, Ollama and LM Studio run."""

from pathlib import Path
from typing import Any

import gguf
from transformers import PreTrainedModel

from lgym.models.export.gguf_layout import TensorLayout, add_tensor, weights_of
from lgym.models.export.gguf_vocabulary import add_vocabulary

_KINDS, _FILES = gguf.GGMLQuantizationType, gguf.LlamaFileType
GGUF_TYPES = {
    "f32": (_KINDS.F32, _FILES.ALL_F32),
    "f16": (_KINDS.F16, _FILES.MOSTLY_F16),
    "bf16": (_KINDS.BF16, _FILES.MOSTLY_BF16),
    "q8_0": (_KINDS.Q8_0, _FILES.MOSTLY_Q8_0),
    "q5_1": (_KINDS.Q5_1, _FILES.MOSTLY_Q5_1),
    "q5_0": (_KINDS.Q5_0, _FILES.MOSTLY_Q5_0),
    "q4_1": (_KINDS.Q4_1, _FILES.MOSTLY_Q4_1),
    "q4_0": (_KINDS.Q4_0, _FILES.MOSTLY_Q4_0),
}
"""Precisions of matrices that the package gguf writes."""


def write_gguf(model: PreTrainedModel, tokenizer: Any, path: Path, *, kind: str, name: str) -> None:
    """Writes a model with its tokenizer.

    Args:
        model: a causal model of Llama, Qwen 2 or Qwen 3, in any precision.
        tokenizer: its own, byte-level BPE.
        path: the file.
        kind: a key of `GGUF_TYPES`.
        name: what the model is called in the file.

    Raises:
        ConfigError: if the model or the tokenizer is of another kind.
    """
    config = model.config
    layout = TensorLayout(config)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[layout.architecture])
    tensors, file_type = GGUF_TYPES[kind]
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_vocabulary(writer, tokenizer, config.vocab_size)
    for parameter, weight in weights_of(model).items():
        add_tensor(writer, layout.name(parameter), layout.rows(parameter, weight), tensors)
    close(writer)


def close(writer: gguf.GGUFWriter) -> None:
    """Writes what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
