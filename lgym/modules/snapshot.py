"""A run's learning as it stood at one moment, kept in memory: what to go back to."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lgym import distributed
from lgym.modules.base import LLMLearner
from lgym.modules.checkpointing import restore_rng_state, rng_state, trained_state


def snapshot(module: LLMLearner, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Copies of what is trained, of the optimizers' state and of the state of chance, on the CPU; tensors and
    numbers only.

    Learning rates and schedules are not in it. All processes of a run have to call this together.
    """
    return {
        "weights": copied(trained_state(module, module.state_dict())),
        "optimizers": [copied(optimizer.state_dict()["state"]) for optimizer in optimizers],
        "rng": distributed.all_gather_object(rng_state()),
    }


def put_back(module: LLMLearner, optimizers: Sequence[Optimizer], saved: Mapping[str, Any]) -> None:
    """Makes everything as it was when `snapshot` returned `saved`, which it leaves as it is. A target network
    becomes a copy of the weights."""
    module.load_state_dict(saved["weights"], strict=False)  # what is frozen is not in it
    for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": copied(state), "param_groups": groups})
    restore_rng_state(saved["rng"])
    module.on_weights_put_back()


def all_finite(module: torch.nn.Module) -> bool:
    """Check that every trained weight is finite, in every process."""
    found = torch.stack([p.detach().isfinite().all() for p in module.parameters() if p.requires_grad])
    return not distributed.all_reduce_any(~found.all())


def copied(value: Any) -> Any:
    """Nested dicts and lists with every tensor copied to the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(inner) for inner in value)
    return value
