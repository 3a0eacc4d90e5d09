"""Weights that come inside a Python package as a GGUF file, converted once and kept in the user's cache folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from lgym.cache import cache_folder


def converted_folder(package: str) -> Path | None:
    """A folder with the package's model as safetensors, converted on first use; `None` if it is not installed.

    The package is not imported: its own dependencies need not be there.
    """
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        return None
    files = [file for file in installed.files or [] if file.name.endswith(".gguf")]
    if not files:
        return None
    source = Path(str(installed.locate_file(files[0])))
    target = cache_folder() / "models" / f"{package}-{installed.version}"
    if not (target / "config.json").exists():
        _convert(source, target)
    return target


def _convert(source: Path, target: Path) -> None:
    """Writes beside the target first, then renames: an interrupted conversion leaves nothing half done."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"Converting {source.name} once, to {target} ...", file=sys.stderr, flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    _forget_quantization(model)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        half_done = Path(scratch) / "model"
        model.save_pretrained(half_done)
        tokenizer.save_pretrained(half_done)
        if target.exists():
            shutil.rmtree(target)
        half_done.replace(target)


def _forget_quantization(model: Any) -> None:
    """The weights are plain floats by now; transformers still marks them as quantized and would not save them."""
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.quantization_method = None
