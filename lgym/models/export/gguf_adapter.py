"""A LoRA adapter as a GGUF file, which llama.cpp adds to a base of its own (`--lora`)."""

import json
from pathlib import Path
from typing import Any

import gguf
from safetensors.torch import load_file

from lgym.models.export.gguf_layout import TensorLayout, add_tensor
from lgym.models.export.gguf_model import close
from lgym.types import ConfigError

PREFIX = "base_model.model."
PARTS = {".lora_A.weight": ".lora_a", ".lora_B.weight": ".lora_b"}


def write_gguf_adapter(adapter: Path, config: Any, path: Path) -> None:
    """Writes an adapter of peft, in fp32.

    Args:
        adapter: its folder.
        config: the base model's.
        path: the file.

    Raises:
        ConfigError: if the folder has no plain LoRA adapter, or the base is of another kind.
    """
    settings = adapter / "adapter_config.json"
    if not settings.exists():
        raise ConfigError(f"{adapter} has no adapter: this model was trained whole. Export it as `gguf`.")
    lora = json.loads(settings.read_text(encoding="utf-8"))
    other = [name for name in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern") if lora.get(name)]
    if other:
        raise ConfigError(
            f"The adapter in {adapter} uses {', '.join(other)}, which a GGUF adapter cannot hold. Export the "
            "merged model as `gguf`."
        )
    layout = TensorLayout(config)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[layout.architecture])
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(lora["lora_alpha"]))
    for key, weight in load_file(adapter / "adapter_model.safetensors").items():
        ending = next((ending for ending in PARTS if key.endswith(ending)), None)
        if ending is None:
            raise ConfigError(
                f"The adapter in {adapter} has the weight {key}, which is no part of LoRA. Export the merged "
                "model as `gguf`."
            )
        parameter = f"{key.removeprefix(PREFIX).removesuffix(ending)}.weight"
        part = layout.rows(parameter, weight) if ending.startswith(".lora_B") else weight
        add_tensor(writer, layout.name(parameter) + PARTS[ending], part, gguf.GGMLQuantizationType.F32)
    close(writer)
