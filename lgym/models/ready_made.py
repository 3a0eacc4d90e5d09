"""Models as objects: loaded for a program of the user's own, and taken from it, whatever they are wrapped in."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from lgym.models.build import load_pretrained, wrap
from lgym.models.config import LLMConfig, LoraSettings
from lgym.models.float32 import use_float32_adapters
from lgym.models.fused_lora import fuse_lora
from lgym.models.fused_norm import fuse_norms
from lgym.models.llm import ValueHeadLLM
from lgym.models.registry import find_entry
from lgym.types import ConfigError


def load_model_and_tokenizer(
    model: str,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    quantization: Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """A plain model of transformers and its tokenizer.

    Args:
        model: a registry name (such as smollm2-135m-instruct), a folder, or a model id of the Hugging Face Hub.
        dtype: precision of the weights; None takes the registry's, float32 for what is not in it.
        device: where it goes.
        quantization: `4bit` or `8bit` holds the weights in as many bits, through bitsandbytes.
        revision: branch, tag or commit of the Hub repository.
        trust_remote_code: run code that comes with the model.

    Raises:
        ModelNotFoundError: if there are no such weights.
    """
    entry = find_entry(model)
    config = LLMConfig(model, quantization=quantization, revision=revision, trust_remote_code=trust_remote_code)
    dtype = dtype or getattr(torch, entry.dtype)
    device = torch.device(device)
    loaded, tokenizer = load_pretrained(config, entry, dtype=dtype, device=device)
    return loaded if quantization is not None else nn.Module.to(loaded, device), tokenizer


def adopt(
    model: Any,
    tokenizer: Any,
    lora: LoraSettings | None,
    *,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> ValueHeadLLM:
    """A model of the user's as lgym uses it. It is changed in place: adapters and attention code go into it.

    Args:
        model: a causal model of transformers, bare or in a `PeftModel`, and either of them in trl's value head, which is
            taken off. Adapters that it has are trained on, without their dropout.
        tokenizer: its tokenizer; it gets a chat template and a padding token where it has none.
        lora: adapters for a model that has none; None trains every weight.
        device: where it goes; None leaves it.
        seed: what new weights are drawn from.

    Raises:
        ValueError: if nothing of it can be trained, or its tokenizer is missing.
    """
    model = getattr(model, "pretrained_model", model)
    name = getattr(getattr(model, "config", None), "name_or_path", None) or type(model).__name__
    if tokenizer is None:
        raise ConfigError(
            f"The model {name} comes without its tokenizer: give both, as load_model_and_tokenizer returns them."
        )
    adapted = hasattr(model, "peft_config")
    if not hasattr(model, "get_output_embeddings") or not hasattr(model, "generate"):
        raise ConfigError(f"{type(model).__name__} is no causal model of transformers. Load one with AutoModelForCausalLM.")
    quantized = bool(getattr(model, "is_quantized", False))
    if device is not None and not quantized:
        model = model.to(device)
    if adapted:
        _require_trainable(model, name)
        _prepare_adapters(model)
    elif lora is None:
        _require_precise(model, name)
    quantization: Literal["8bit"] | None = "8bit" if quantized and not adapted else None  # of any number of bits
    config = LLMConfig(name, lora=None if adapted else lora, quantization=quantization)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return wrap(model, tokenizer, config, find_entry(name))


def _prepare_adapters(model: Any) -> None:
    """peft's own adapters as lgym makes them: in fp32, without dropout, fused."""
    from peft.tuners.lora import LoraLayer

    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            for adapter in layer.lora_dropout:
                layer.lora_dropout[adapter] = nn.Identity()
    use_float32_adapters(model)
    fuse_lora(model)
    fuse_norms(model)


def _require_trainable(model: Any, name: str) -> None:
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(
            f"No adapter of {name} can be trained: load it with PeftModel.from_pretrained(..., is_trainable=True)."
        )


def _require_precise(model: Any, name: str) -> None:
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    if not trained:
        raise ConfigError(f"lora is False, which trains every weight, and all weights of {name} are frozen.")
    coarse = sorted(str(dtype) for dtype in trained if torch.finfo(dtype).bits < 32)
    if coarse:
        raise ConfigError(
            f"lora is False, which trains every weight, and those of {name} are in {', '.join(coarse)}, where small steps "
            "are lost. Load it with dtype=torch.float32, or train adapters (lora=True)."
        )
