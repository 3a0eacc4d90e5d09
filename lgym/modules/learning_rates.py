"""The optimizer and schedule where none is configured, and learning rates as configured, whatever the
optimizer of a checkpoint brings along."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lgym.models.llm import ValueHeadLLM
from lgym.modules.schedules import WarmupCosine

RATES = ("lr", "initial_lr", "max_lr", "min_lr")
"""The entries of an optimizer's parameter groups that torch's schedules keep."""


def choice_optimizer(parameters: Iterable[Any]) -> Optimizer:
    """The optimizer where none is configured, of policies that choose between candidates."""
    return torch.optim.AdamW(parameters, lr=8e-4, weight_decay=0.0)


def text_optimizer(parameters: Iterable[Any]) -> Optimizer:
    """The optimizer where none is configured, of policies that write text: at the rate of choices a few
    rollouts undo what demonstrations have taught."""
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0)


def default_schedule(optimizer: Optimizer) -> LRScheduler:
    """The schedule where none is configured."""
    return WarmupCosine(optimizer, warmup=2)


def parameter_groups(
    llm: ValueHeadLLM, make_optimizer: Callable[[Any], Optimizer], value_lr_scale: float
) -> list[dict[str, Any]]:
    """The language model's trained parameters, and those of the heads, which start from nothing and learn
    faster."""
    head = [parameter for head in llm.heads for parameter in head.parameters()]
    heads = {id(p) for p in head}
    body = [p for p in llm.parameters() if p.requires_grad and id(p) not in heads]
    if not head:
        return [{"params": body}]
    rate = make_optimizer([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
    return [{"params": body}, {"params": head, "lr": rate * value_lr_scale}]


def rates_of(optimizer: Optimizer) -> list[dict[str, float]]:
    """The rates of each parameter group."""
    return [{key: group[key] for key in RATES if key in group} for group in optimizer.param_groups]


def set_rates(optimizer: Optimizer, configured: Sequence[Mapping[str, float]], factor: float) -> None:
    """Makes the optimizer's rates `factor` times the configured ones, at the same point of the schedule.

    Args:
        optimizer: its rates are set, and the entries that schedules keep beside them.
        configured: the rates of each parameter group, from `rates_of` of the new optimizer.
        factor: of the configured rates.
    """
    for group, rates in zip(optimizer.param_groups, configured, strict=True):
        wanted = {key: rate * factor for key, rate in rates.items()}
        if "initial_lr" in wanted:
            before, rate = group.get("initial_lr", group["lr"]), wanted.pop("lr")
            if before != wanted["initial_lr"]:
                group["lr"] = group["lr"] * (wanted["initial_lr"] / before) if before else rate
        group.update(wanted)


def scale_rates(trainer: L.Trainer, configured: Sequence[Mapping[str, float]], factor: float) -> None:
    """Make the learning rates of a run `factor` times the configured ones, at the same point of its
    schedules."""
    for optimizer in trainer.optimizers:
        set_rates(optimizer, configured, factor)
    for config in trainer.lr_scheduler_configs:
        follow(config.scheduler)


def follow(scheduler: Any) -> None:
    """Base a schedule, and those that it is made of, on its optimizer's rates."""
    for part in _parts(scheduler):
        if isinstance(part, LRScheduler):
            part.base_lrs = [group["initial_lr"] for group in part.optimizer.param_groups]


def _parts(scheduler: Any) -> Iterator[Any]:
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _parts(inner)
