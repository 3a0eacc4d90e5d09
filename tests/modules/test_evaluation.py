"""Statistics of evaluation episodes."""

from __future__ import annotations

import pytest
import torch

from lgym.batch import EpisodeStatistics
from lgym.modules import REINFORCE
from lgym.modules.evaluation import EpisodeMetrics


def statistics(returns, lengths, looping=()) -> EpisodeStatistics:
    flags = torch.tensor(looping or [False] * len(returns))
    return EpisodeStatistics(torch.tensor(returns), torch.tensor(lengths), flags)


def test_mean_and_interval_survive_a_half_precision_module():
    """bf16-true casts whole modules: a mean of 1000 with a spread of 1 would lose its spread.

    Returns 999, 1000, 1001: s² = 2 / 2 = 1, so the interval is 1.96 / sqrt(3) = 1.1316.
    """
    metrics = EpisodeMetrics().to(dtype=torch.bfloat16)
    metrics.update(statistics([999.0, 1000.0, 1001.0], [1.0, 2.0, 3.0], [True, False, False]))
    result = {name: float(value) for name, value in metrics.compute().items()}
    assert result == pytest.approx(
        {
            "return_mean": 1000.0,
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
    metrics.update(statistics([5.0], [1.0]))
    assert float(metrics.compute()["return_ci95"]) == float("inf")


def test_each_mode_has_its_own_evaluation(monkeypatch):
    """Catches episodes counted to the other mode, not counted, or counted again in the next evaluation."""
    module = REINFORCE()
    logged = {}
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.update({name: float(value)}))
    for returns in ((1.0, 3.0), (5.0, 7.0)):  # means 2 and 6, and greedily 10 less
        for stage, step in (("val", module.validation_step), ("test", module.test_step)):
            batches = [statistics([x - shift for x in returns], [1.0, 1.0]) for shift in (10.0, 0.0)]
            for number, batch in enumerate(batches):
                step(batch, 0, number)
            getattr(module, "on_validation_epoch_end" if stage == "val" else "on_test_epoch_end")()
            mean = sum(returns) / 2
            assert logged[f"{stage}_greedy/return_mean"] == mean - 10
            assert logged[f"{stage}_sampled/return_mean"] == mean
