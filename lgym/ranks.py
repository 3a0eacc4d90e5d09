"""What the processes of a run tell each other. One that is alone tells itself, and none of this costs it anything.

Every function here but `rank` and `size` has to be called by all of them, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")


def size() -> int:
    """How many there are."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return distributed.get_rank() if size() > 1 else 0


def everyone(own: T) -> list[T]:
    """What each of them has, in the order of their ranks; anything that can be pickled."""
    if size() == 1:
        return [own]
    found: list[Any] = [None] * size()
    distributed.all_gather_object(found, own)
    return found


def joined(own: Tensor) -> Tensor:
    """Everyone's entries, [all of them, ...], in the order of ranks."""
    return torch.cat(everyone(own))


def jointly(function: Callable[[Tensor], Tensor], own: Tensor) -> Tensor:
    """Applies a function to everyone's entries at once, such as `whiten`: what it gives for these."""
    columns = everyone(own)
    start = sum(map(len, columns[: rank()]))
    return function(torch.cat(columns))[start : start + len(own)]


def mean(own: float) -> float:
    """Of everyone's number."""
    found = everyone(own)
    return sum(found) / len(found) if len(found) > 1 else own


def weighted_mean(own: Tensor, weight: float) -> Tensor:
    """Of everyone's 0-d tensor, as much as it weighs; without gradient, and quick enough for every step."""
    if size() == 1:
        return own
    sums = torch.stack([own.detach().double() * weight, own.new_tensor(weight, dtype=torch.float64)])
    distributed.all_reduce(sums)
    return (sums[0] / sums[1].clamp(min=1e-12)).to(own.dtype)


def any_of(own: Tensor) -> bool:
    """Whether it is so anywhere: of a 0-d bool tensor."""
    if size() == 1:
        return bool(own)
    found = own.float()
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return bool(found)


def is_loss_of_another(error: RuntimeError) -> bool:
    """Whether what was raised says that another process answers no more."""
    return isinstance(error, distributed.DistError) or "gloo/transport" in str(error)
