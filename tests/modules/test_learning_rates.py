"""Learning rates that are lowered under every kind of schedule."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from lgym.modules.learning_rates import follow, rates_of, set_rates
from lgym.modules.schedules import WarmupCosine

SCHEDULES = {
    "none": None,
    "LinearLR": lambda o: schedules.LinearLR(o, total_iters=4),
    "LambdaLR": lambda o: WarmupCosine(o, warmup=2, total=6),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, T_max=6),
    "StepLR": lambda o: schedules.StepLR(o, step_size=2),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, max_lr=[0.1, 0.5], total_steps=8),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o,
        [schedules.LambdaLR(o, lambda n: 0.1 * (n + 1)), schedules.LambdaLR(o, lambda n: 0.9**n)],
        milestones=[3],
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, total_iters=3), schedules.LambdaLR(o, lambda n: 0.5**n)]
    ),
}


def optimizer(scale: float = 1.0) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr * scale} for lr in (0.1, 0.5)]
    return torch.optim.AdamW(groups)


def path(make, lowered_after: int | None = None) -> list[list[float]]:
    """The rates of six rollouts, with 0.3 of them from the given one on."""
    chosen = optimizer()
    schedule = None if make is None else make(chosen)
    configured = rates_of(chosen)
    rates = []
    for rollout in range(6):
        if rollout == lowered_after:
            set_rates(chosen, configured, 0.3)
            if schedule is not None:
                follow(schedule)
        rates.append([group["lr"] for group in chosen.param_groups])
        chosen.step()
        if schedule is not None:
            schedule.step()
    return rates


@pytest.mark.filterwarnings("ignore:.*To get the last learning rate.*", "ignore:.*epoch parameter.*")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("at", [0, 2, 4])
def test_every_later_rate_is_lower(name, at):
    """Catches a schedule that puts its own rates back, or restarts."""
    whole, lowered = path(SCHEDULES[name]), path(SCHEDULES[name], at)
    for rollout in range(6):
        factor = 0.3 if rollout >= at else 1.0
        assert lowered[rollout] == pytest.approx([factor * rate for rate in whole[rollout]], rel=1e-9), (
            rollout
        )


@pytest.mark.parametrize("name", SCHEDULES)
def test_setting_them_again_changes_nothing(name):
    """A resumed run sets them once more: not the last bit may move."""
    chosen = optimizer()
    if SCHEDULES[name] is not None:
        SCHEDULES[name](chosen)
    configured = rates_of(chosen)
    set_rates(chosen, configured, 0.3)
    once = rates_of(chosen)
    set_rates(chosen, configured, 0.3)
    assert rates_of(chosen) == once
