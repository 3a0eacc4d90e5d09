"""GGUF files as llama.cpp writes them, of tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel

from helpers import tiny

NORMAL, CONTROL, BYTE = 1, 3, 6  # llama.cpp's types of tokens
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n{{ message['content'] }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def write_llama(path: Path, *, architecture: str = "llama", without: str = "nothing") -> Path:
    """The tiny model with its tokenizer and template in 32 bits; `without` leaves out weights of that
    name."""
    model, tokenizer = tiny.causal_lm(), tiny.tokenizer()
    writer = _writer(path, architecture, model)
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    types = [CONTROL if token in tokenizer.all_special_tokens else NORMAL for token in vocabulary]
    _add_tokenizer(writer, "gpt2", [*vocabulary, "ĀĀ"], [*types, NORMAL], tiny.TEMPLATE)
    writer.add_token_merges(["Ā Ā"])  # two bytes of 0, since a list of none is not written
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    weights = {name: weight for name, weight in model.state_dict().items() if without not in name}
    for name, weight in weights.items():
        rotary = next((count for layer, count in heads.items() if layer in name), None)
        weights[name] = weight if rotary is None else _interleaved(weight, rotary)
    return _close(writer, path, gguf.MODEL_ARCH.LLAMA, model, weights)


def gemma() -> Gemma3ForCausalLM:
    """A tiny Gemma 3, whose window is an eighth of its context."""
    config = Gemma3TextConfig(
        vocab_size=358, hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=256, max_position_embeddings=1024,
        sliding_window=128,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return Gemma3ForCausalLM(config).eval()


def write_gemma(path: Path) -> Path:
    """`gemma()` with a sentencepiece vocabulary of letters and bytes."""
    model = gemma()
    writer = _writer(path, "gemma3", model)
    writer.add_sliding_window(model.config.sliding_window)
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    letters = ["\u2581", *map(chr, range(33, 127)), "\n"]
    codes = [f"<0x{code:02X}>" for code in range(256)]
    types = [CONTROL] * len(special) + [BYTE] * len(codes) + [NORMAL] * len(letters)
    _add_tokenizer(writer, "llama", [*special, *codes, *letters], types, GEMMA_TEMPLATE)
    writer.add_token_scores([0.0] * len(types))
    for name, index in (("pad", 0), ("bos", 2), ("unk", 3), ("eos", 1)):  # not the end of a turn
        getattr(writer, f"add_{name}_token_id")(index)
    weights = {name: weight + 1 if "norm" in name else weight for name, weight in model.state_dict().items()}
    return _close(writer, path, gguf.MODEL_ARCH.GEMMA3, model, weights)


def _writer(path: Path, architecture: str, model: PreTrainedModel) -> gguf.GGUFWriter:
    writer, config = gguf.GGUFWriter(path, architecture), model.config
    rope = config.rope_parameters
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    return writer


def _add_tokenizer(
    writer: gguf.GGUFWriter, kind: str, vocabulary: list[str], types: list[int], template: str
) -> None:
    writer.add_tokenizer_model(kind)
    writer.add_token_list(vocabulary)
    writer.add_token_types(types)
    writer.add_chat_template(template)


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp keeps the two halves of a rotation beside each other."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def _close(
    writer: gguf.GGUFWriter, path: Path, kind: Any, model: PreTrainedModel, weights: dict[str, Tensor]
) -> Path:
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    tied = model.config.tie_word_embeddings
    for name, weight in weights.items():
        if not (tied and name == "lm_head.weight"):
            writer.add_tensor(names.get_name(name, (".weight",)), weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
