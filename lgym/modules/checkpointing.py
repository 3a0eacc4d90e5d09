"""The module's part of a checkpoint: trained weights and random states, as plain tensors and numbers."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lgym import distributed
from lgym.types import LgymError

FORMAT = 8
"""The version of lgym's entries in a checkpoint, the module's and the data module's."""


class CheckpointMismatchError(LgymError, ValueError):
    """The checkpoint belongs to another model, or to other adapters."""


def trained_state(module: nn.Module, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a state dict that training changes: trained parameters, and everything of modules that
    are trained as a whole; the frozen base model is left out."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    whole = tuple(
        f"{name}." if name else ""
        for name, part in module.named_modules()
        if (parameters := list(part.parameters())) and all(p.requires_grad for p in parameters)
    )
    return {name: tensor for name, tensor in state_dict.items() if name in trained or name.startswith(whole)}


def require_fitting(
    module: nn.Module, state_dict: Mapping[str, Tensor], saved_model: str, model: str
) -> None:
    """Raises `CheckpointMismatchError` unless the state holds all that the module trains, in the same
    shapes."""
    if saved_model != model:
        raise CheckpointMismatchError(
            f"The checkpoint was trained on {saved_model!r} and the configuration says {model!r}. "
            f"Set model.init_args.llm.model to {saved_model!r}, or start without --ckpt_path."
        )
    wanted = {name: tuple(p.shape) for name, p in module.named_parameters() if p.requires_grad}
    missing = sorted(set(wanted) - set(state_dict))
    differing = sorted(n for n in wanted if n in state_dict and tuple(state_dict[n].shape) != wanted[n])
    unknown = sorted(set(state_dict) - set(module.state_dict()))
    if missing or differing or unknown:
        name = (differing or missing or unknown)[0]
        have = tuple(state_dict[name].shape) if name in state_dict else "nothing"
        raise CheckpointMismatchError(
            f"The checkpoint does not fit the configured adapters and heads: {len(missing)} tensors are "
            f"missing, {len(differing)} have another shape, {len(unknown)} are not wanted; {name}, for one, "
            f"is {have} there and {wanted.get(name, 'nothing')} here. Use the llm settings (lora, "
            "value_hidden_size) of the config.yaml that was saved beside the checkpoint."
        )


def rng_state() -> dict[str, Any]:
    """The state of Python's, NumPy's, torch's and each CUDA device's generator."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, words, gauss = random.getstate()
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Puts back what `rng_state` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([generator.cpu() for generator in state["cuda"]])


def run_state(model: str) -> dict[str, Any]:
    """The entries of a checkpoint beside the weights: its format, the model's name, and the random states of
    every process."""
    return {"format": FORMAT, "model": model, "rng": distributed.all_gather_object(rng_state())}


def restore_rng_state(states: Sequence[Mapping[str, Any]]) -> None:
    """Put back this process's own of the random states that all processes saved."""
    set_rng_state(states[distributed.rank() % len(states)])


def require_format(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The `run_state` in a checkpoint. Raises `CheckpointMismatchError` where it has none, or another
    format's."""
    saved: dict[str, Any] | None = checkpoint.get("lgym")
    if saved is None:
        raise CheckpointMismatchError(
            "This is not a checkpoint of lgym: it does not say which model it belongs to."
        )
    if saved["format"] != FORMAT:
        raise CheckpointMismatchError(
            f"The checkpoint has format {saved['format']}, of another version of lgym; this one reads "
            f"{FORMAT}. Go on with the version that wrote it, or start without --ckpt_path."
        )
    return saved
