"""Pretrained models as objects: loaded for a user's own program, and wrapped as `ValueHeadLLM`."""

from typing import Any, Literal

import torch
from torch import nn

from lgym.models.adapters import require_layers
from lgym.models.build import assemble_llm, load_pretrained
from lgym.models.config import LLMConfig, LoraSettings
from lgym.models.devices import available_device
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
    """Loads a plain model of transformers, and its tokenizer.

    Args:
        model: a registry name (such as smollm2-135m-instruct), a folder, a GGUF file, or a model id of the
            Hugging Face Hub.
        dtype: precision of the weights; None takes the registry's, or float32 for a model that is not in it.
        device: the device to put it on; the CPU, with a warning, where it is a GPU that is not there.
        quantization: `int8`, `4bit` or `8bit` quantizes the weights, as in `LLMConfig`.
        revision: branch, tag or commit of the Hub repository.
        trust_remote_code: run code that comes with the model.

    Raises:
        ModelNotFoundError: if there are no such weights.
    """
    entry = find_entry(model)
    config = LLMConfig(
        model, quantization=quantization, revision=revision, trust_remote_code=trust_remote_code
    )
    dtype, device = dtype or getattr(torch, entry.dtype), available_device(device)
    loaded, tokenizer = load_pretrained(config, entry, dtype=dtype, device=device)
    in_place = getattr(loaded, "is_quantized", False)
    return loaded if in_place else nn.Module.to(loaded, device), tokenizer


def wrap_pretrained(
    model: Any,
    tokenizer: Any,
    lora: LoraSettings | None,
    *,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> ValueHeadLLM:
    """Wraps a user's model as `ValueHeadLLM`, in place: it gets adapters and attention code.

    Args:
        model: a causal model of transformers, bare or in a `PeftModel`, and either of them in trl's value
            head, which is taken off. Adapters that it has are trained on, without their dropout.
        tokenizer: its tokenizer; it gets a chat template and a padding token where it has none.
        lora: adapters for a model that has none; None trains every weight.
        device: the device to put it on, or the CPU as above; None leaves it.
        seed: seed of new weights.

    Raises:
        ValueError: if nothing of it can be trained, it is on several devices, its adapter consists of virtual
            tokens, or its tokenizer is missing.
    """
    model = getattr(model, "pretrained_model", model)
    name = getattr(getattr(model, "config", None), "name_or_path", None) or type(model).__name__
    if tokenizer is None:
        raise ConfigError(
            f"The model {name} comes without its tokenizer: give both, as load_model_and_tokenizer returns "
            "them."
        )
    if not hasattr(model, "get_output_embeddings") or not hasattr(model, "generate"):
        raise ConfigError(
            f"{type(model).__name__} is no causal model of transformers. Load one with AutoModelForCausalLM."
        )
    quantized = bool(getattr(model, "is_quantized", False))
    if device is not None and not quantized:
        model = model.to(available_device(device))
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise ConfigError(
            f"The weights of {name} are on several devices ({', '.join(devices)}), and lgym takes a model on "
            'one: load it without device_map, or by device_map={"": 0}.'
        )
    adapted = hasattr(model, "peft_config")
    for adapter in getattr(model, "peft_config", {}).values():
        require_layers(adapter, f"of {name}")
    if adapted or lora is None:
        _require_trainable(model, name, adapted=adapted)
    # stands for any number of bits
    quantization: Literal["8bit"] | None = "8bit" if quantized and not adapted else None
    config = LLMConfig(name, lora=None if adapted else lora, quantization=quantization)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return assemble_llm(model, tokenizer, config, find_entry(name))


def _require_trainable(model: Any, name: str, *, adapted: bool) -> None:
    dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
    if adapted and not dtypes:
        raise ConfigError(
            f"No adapter of {name} can be trained: load it with PeftModel.from_pretrained(..., "
            "is_trainable=True)."
        )
    if not dtypes:
        raise ConfigError(f"lora is False, which trains every weight, and all weights of {name} are frozen.")
    coarse = sorted(str(dtype) for dtype in dtypes if torch.finfo(dtype).bits < 32)
    if coarse and not adapted:
        raise ConfigError(
            f"lora is False, which trains every weight, and those of {name} are in {', '.join(coarse)}, "
            "where small steps are lost. Load it with dtype=torch.float32, or train adapters (lora=True)."
        )
