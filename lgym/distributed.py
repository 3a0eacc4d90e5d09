"""Collectives over the processes of a run. A process that is alone gets its own value, at no cost.

Every function here but `rank`, `world_size`, `leave` and `keep_in` has to be called by all processes, in the
same order.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def world_size() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


class Lockstep:
    """Keeps processes together that can only pass forward together, while each has work of its own.

    A process calls `step` before each pass. One that has come to a point that all come to (`meet`, which
    every collective here begins with) takes part in the passes of the others with an empty one, until all
    have come there; as transformers' generation does with `synced_gpus`.
    """

    def __init__(self, empty_pass: Callable[[], None], device_type: str) -> None:
        self._empty_pass = empty_pass
        self._device_type = device_type
        self._helps = False

    def step(self) -> None:
        """Tell the others that this process passes forward now."""
        if not self._helps:
            self._anyone_passes(True)

    def meet(self) -> None:
        """Take part in the passes of the others until all have called this."""
        while self._anyone_passes(False):
            self._helps = True
            try:
                self._empty_pass()
            finally:
                self._helps = False

    def _anyone_passes(self, this: bool) -> bool:
        flag = torch.tensor(float(this), device=self._device_type)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)


_lockstep: Lockstep | None = None


def keep_in(lockstep: Lockstep | None) -> None:
    """Have every collective wait in a lockstep; `None` ends that."""
    global _lockstep
    _lockstep = lockstep


def meet() -> None:
    """Wait for the processes that still pass forward, where a pass needs all of them."""
    if _lockstep is not None:
        _lockstep.meet()


def leave() -> None:
    """Leave the group of processes, if there is one: a program that exits within it may be aborted by its
    threads."""
    keep_in(None)
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def all_gather_object(value: T) -> list[T]:
    """The value of each process, in the order of ranks; anything that can be pickled."""
    if world_size() == 1:
        return [value]
    meet()
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def all_gather_cat(entries: Tensor) -> Tensor:
    """The entries [n, ...] of all processes, [sum of n, ...], in the order of ranks, on the device of this
    process's."""
    if world_size() == 1:
        return entries
    return torch.cat(all_gather_object(entries.cpu())).to(entries.device)


def apply_global(function: Callable[[Tensor], Tensor], entries: Tensor) -> Tensor:
    """Apply a function to the entries [n] of all processes at once, such as `whiten`; this process's part of
    the result."""
    columns = all_gather_object(entries.cpu())
    start = sum(map(len, columns[: rank()]))
    return function(torch.cat(columns))[start : start + len(entries)].to(entries.device)


def all_reduce_mean(value: float) -> float:
    """The mean of a number over processes."""
    values = all_gather_object(value)
    return sum(values) / len(values) if len(values) > 1 else value


def all_reduce_weighted_mean(value: Tensor, weight: float) -> Tensor:
    """The weighted mean of a 0-d tensor over processes; without gradient, and quick enough for every step."""
    if world_size() == 1:
        return value
    meet()
    sums = torch.stack([value.detach().double() * weight, value.new_tensor(weight, dtype=torch.float64)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1].clamp(min=1e-12)).to(value.dtype)


def all_reduce_any(flag: Tensor) -> bool:
    """The logical or of a 0-d bool tensor over processes."""
    if world_size() == 1:
        return bool(flag)
    if flag.device.type == "cpu" and dist.get_backend() == "nccl":  # which reduces on GPUs alone
        return any(all_gather_object(bool(flag)))
    meet()
    value = flag.float()
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return bool(value)


def is_peer_failure(error: RuntimeError) -> bool:
    """Check whether an error says that another process no longer answers."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)
