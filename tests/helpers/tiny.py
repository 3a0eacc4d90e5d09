"""A tiny random causal model and a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lgym.models import LLMConfig, LoraSettings, ValueHeadLLM
from lgym.models.build import assemble_llm
from lgym.models.registry import DEFAULT

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A token a byte, and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2]
    )
    made.chat_template = template
    return made


def config(**changes: Any) -> LlamaConfig:
    values = {
        "vocab_size": 260,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": 257,
        "eos_token_id": 258,
        "pad_token_id": 256,
        "initializer_range": 0.2,
    }
    return LlamaConfig(**{**values, **changes})


def causal_lm(dtype: torch.dtype = torch.float32, **changes: Any) -> LlamaForCausalLM:
    """Weights from a seed of their own, eager attention."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = LlamaForCausalLM._from_config(config(**changes), attn_implementation="eager")
    return model.to(dtype).eval()


def llm(dtype: torch.dtype = torch.float32, lora: LoraSettings | None = None, **changes: Any) -> ValueHeadLLM:
    """The tiny model as lgym wraps it; adapters with weights that are not zero, so that they show."""
    settings = LLMConfig(model="tiny", lora=lora or LoraSettings(r=4), value_hidden_size=16)
    wrapped = assemble_llm(causal_lm(dtype, **changes), tokenizer(), settings, DEFAULT)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name or "value_head.output" in name:
                parameter.normal_(std=0.1)
    if dtype == torch.float64:
        for parameter in wrapped.parameters():
            parameter.data = parameter.data.double()
    return wrapped


def save(folder: Path) -> None:
    causal_lm().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
