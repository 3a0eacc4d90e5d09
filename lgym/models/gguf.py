"""GGUF files as models: converted once, to safetensors with a tokenizer in the user's cache folder."""

import hashlib
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lgym.cache import cache_folder
from lgym.types import ConfigError

# What gguf raises at a header that makes no sense or lacks an entry. In transformers the same, and
# RuntimeError for weights of other shapes than the header's or in a quantization that is not known.
BAD_HEADER = (ValueError, LookupError)
UNREADABLE = (*BAD_HEADER, RuntimeError)


def converted_file(path: Path) -> Path:
    """Folder with the model of a GGUF file, converted on first use and again when the file has changed.

    Raises:
        ConfigError: if it is no GGUF file, or not one that transformers can read as a whole causal model.
    """
    path = path.resolve()
    state = path.stat()
    digest = hashlib.sha256(f"{path} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:12]
    return converted(path, f"{path.stem}-{digest}")


def converted(path: Path, name: str) -> Path:
    """Folder `name` in the cache with the model of a GGUF file, converted unless it is there."""
    target = cache_folder() / "models" / name
    if not _is_whole(target):
        _convert(path, target)
    return target


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").exists()


def _convert(source: Path, target: Path) -> None:
    architecture = _architecture(source)
    print(f"Converting {source.name} once, to {target} ...", file=sys.stderr, flush=True)
    tokenizer, model = _load(source, architecture)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        unfinished = Path(scratch) / "model"
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        if not _is_whole(target):  # another process of the run may have been first
            shutil.rmtree(target, ignore_errors=True)
            unfinished.replace(target)  # renamed at the end, so that it is whole or absent


def _load(source: Path, architecture: str) -> tuple[Any, Any]:
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": source.name}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, **options)
        options |= {"dtype": torch.float32, "output_loading_info": True}
        both: Any = transformers.AutoModelForCausalLM.from_pretrained(source.parent, **options)
        model, loaded = both
    except UNREADABLE as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ConfigError(
            f"The GGUF file {source} holds a model of the architecture {architecture!r}, which transformers "
            f"{transformers.__version__} could not read ({type(error).__name__}: {reason}). Give the "
            "same model as a folder of safetensors or as a Hub id, or another model."
        ) from error
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise ConfigError(
            f"The GGUF file {source} lacks {len(missing)} weights of its model, such as {missing[0]}: it is "
            "one part of several, or an adapter. Give a file with the whole model (llama-gguf-split --merge "
            "joins parts)."
        )
    # transformers marks the weights as quantized, though they are plain floats by now, and would not save
    # them
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.quantization_method = None
    model.generation_config.eos_token_id = _ends_of_response(tokenizer)
    return tokenizer, model


def _ends_of_response(tokenizer: Any) -> list[int]:
    """The end of sequence, and the special token that the template writes behind a response: files of Gemma
    name `<eos>` alone, where a response ends with `<end_of_turn>`."""
    ends = [tokenizer.eos_token_id]
    if tokenizer.chat_template is not None:
        content = "a response"
        messages = [{"role": "user", "content": "a prompt"}, {"role": "assistant", "content": content}]
        text = tokenizer.apply_chat_template(messages, tokenize=False).rpartition(content)[2]
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        ends += [i for i in ids if i in special][:1]
    return sorted({end for end in ends if end is not None})


def _architecture(source: Path) -> str:
    """The architecture that a file names.

    Raises:
        ConfigError: if it is no whole GGUF file, or the package gguf is missing.
    """
    with source.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ConfigError(
            f"{source} is no GGUF file: it begins with {magic!r}. A model is the path of a GGUF file, a "
            "folder with safetensors and a config.json, a Hub id or a name of the registry."
        )
    if find_spec("gguf") is None:
        raise ConfigError(
            f"The model {source} is a GGUF file, and the package gguf, which reads it, is not installed: "
            "`pip install gguf`."
        )
    from gguf import GGUFReader

    class BoundedReader(GGUFReader):
        """A wrong length keeps the reader busy for hours, since it takes what is behind the end as empty."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *options: Any, **named: Any) -> Any:
            if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError(f"its header names {int(count):,} values at byte {offset:,}, behind its end")
            return super()._get(offset, dtype, count, *options, **named)

    try:
        field = BoundedReader(source).fields["general.architecture"]
        return bytes(field.parts[field.data[0]]).decode()
    except BAD_HEADER as error:
        raise ConfigError(
            f"The GGUF file {source} ({source.stat().st_size:,} bytes) is damaged or not whole, such as a "
            f"download that stopped: {error}. Get it again."
        ) from error
