"""The learning-rate schedule counted in rollouts."""

from __future__ import annotations

import pytest
import torch

from lgym.modules.schedules import WarmupCosine


def schedule_of(**settings) -> WarmupCosine:
    """A schedule of a full rate of 1."""
    return WarmupCosine(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), **settings)


def rates_of(count: int, run: int | None = None, **settings) -> list[float]:
    """The rates of so many rollouts, of a run of `run`."""
    schedule = schedule_of(**settings)
    schedule.fall_over(run)
    return following(schedule, count)


def following(schedule: WarmupCosine, count: int) -> list[float]:
    """The rates of the next rollouts."""
    optimizer, rates = schedule.optimizer, []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def test_the_schedule_warms_up_and_falls():
    """1/4, 2/4, 3/4, then 1 falling by half a cosine to 0.2 after 10 rollouts, halfway at 0.6."""
    rates = rates_of(12, warmup=3, total=9, final=0.2)
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[6] == pytest.approx(0.6)
    assert rates[9:] == pytest.approx([0.2] * 3)


def test_a_schedule_may_stay_at_the_full_rate():
    """Catches a final share of 1 that is refused: after the warm-up, 1/2, it is 1 to the end."""
    assert rates_of(5, warmup=1, total=3, final=1.0) == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_without_a_length_it_falls_over_the_run():
    """Catches a rate that is as high at the end of a short run as at its start. A length that is given
    counts; a run of any number of rollouts has no end to fall to."""
    expected = rates_of(12, warmup=3, total=9, final=0.2)
    assert rates_of(12, run=9, warmup=3, final=0.2) == expected
    assert rates_of(12, run=100, warmup=3, total=9, final=0.2) == expected
    assert rates_of(5, run=-1, warmup=1) == rates_of(5, run=None, warmup=1) == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert rates_of(2, run=1, warmup=2) == pytest.approx([1 / 3, 2 / 3])


def test_a_prolonged_run_falls_over_its_new_length():
    """Catches the old length from a checkpoint: rollouts 6 to 9 of 20 are those of a run of 20 from the
    start."""
    first = schedule_of(warmup=2)
    first.fall_over(10)
    following(first, 6)
    longer = schedule_of(warmup=2)
    longer.fall_over(20)
    longer.load_state_dict(first.state_dict())
    assert following(longer, 4) == pytest.approx(rates_of(10, run=20, warmup=2)[6:])


@pytest.mark.parametrize("settings", [{"warmup": 9, "total": 9}, {"warmup": 0, "total": 5, "final": 2.0}])
def test_an_impossible_schedule_is_refused(settings):
    """A warm-up longer than the run would never reach the rate."""
    with pytest.raises(ValueError, match="warmup is 9|final is 2.0"):
        rates_of(1, **settings)
