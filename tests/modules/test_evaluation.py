"""Statistics of evaluation episodes."""

from __future__ import annotations

import pytest
import torch

from lgym.modules import REINFORCE
from lgym.modules.evaluation import EpisodeMetrics
from lgym.rollout import EpisodeStatistics

NAN = float("nan")


def episodes(returns, lengths=None, successes=None, looping=None) -> EpisodeStatistics:
    columns = (
        returns,
        lengths or [1.0] * len(returns),
        [0.0] * len(returns),
        successes or [NAN] * len(returns),
        looping or [False] * len(returns),
    )
    return EpisodeStatistics(*map(torch.tensor, columns))


def test_success_rate_with_an_interval_that_is_not_empty():
    """Ten of ten: Wilson's interval ends at 10 / (10 + 1.96²) = 0.7225, so the margin is 0.2775. Eight of ten:
    center (0.8 + 0.19208) / 1.38416 = 0.71674, half 1.96 sqrt(0.016 + 0.009604) / 1.38416 = 0.22658; the
    farther end is 0.8 - 0.49016."""
    for successes, rate, margin in (([1.0] * 10, 1.0, 0.27753), ([1.0] * 8 + [0.0, NAN], 0.8, 0.30984)):
        metrics = EpisodeMetrics()
        metrics.update(episodes([0.0] * 10, successes=successes))
        result = metrics.compute()
        assert float(result["success_rate"]) == pytest.approx(rate)
        assert float(result["success_ci95"]) == pytest.approx(margin, abs=1e-4)


def test_an_environment_that_does_not_say_has_no_success_rate():
    """A rate of 0 would say that everything failed."""
    metrics = EpisodeMetrics()
    metrics.update(episodes([1.0, 2.0]))
    assert "success_rate" not in metrics.compute()


def test_mean_and_interval_survive_a_half_precision_module():
    """bf16-true casts whole modules: a mean of 1000 with a spread of 1 would lose its spread.

    Returns 999, 1000, 1001: s² = 2 / 2 = 1, so the interval is 1.96 / sqrt(3) = 1.1316.
    """
    metrics = EpisodeMetrics().to(dtype=torch.bfloat16)
    metrics.update(episodes([999.0, 1000.0, 1001.0], [1.0, 2.0, 3.0], looping=[True, False, False]))
    result = {name: float(value) for name, value in metrics.compute().items()}
    assert result == pytest.approx(
        {
            "return_mean": 1000.0,
            "return_std": 0.8165,  # sqrt(2 / 3)
            "return_ci95": 1.1316,
            "length_mean": 2.0,
            "length_std": 0.8165,  # sqrt(2 / 3)
            "looping_rate": 1 / 3,
        },
        abs=1e-3,
    )


def test_one_episode_has_no_interval():
    """Zero would claim certainty."""
    metrics = EpisodeMetrics()
    metrics.update(episodes([5.0]))
    assert float(metrics.compute()["return_ci95"]) == float("inf")


def test_each_mode_has_its_own_evaluation(monkeypatch):
    """Catches episodes counted to the other mode, not counted, or counted again in the next evaluation."""
    module = REINFORCE()
    logged = {}
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.update({name: float(value)}))
    for returns in ((1.0, 3.0), (5.0, 7.0)):  # means 2 and 6, and greedily 10 less
        for stage, step in (("val", module.validation_step), ("test", module.test_step)):
            batches = [episodes([value - shift for value in returns]) for shift in (10.0, 0.0)]
            for number, batch in enumerate(batches):
                step(batch, 0, number)
            getattr(module, "on_validation_epoch_end" if stage == "val" else "on_test_epoch_end")()
            mean = sum(returns) / 2
            assert logged[f"{stage}_greedy/return_mean"] == mean - 10
            assert logged[f"{stage}_sampled/return_mean"] == mean
