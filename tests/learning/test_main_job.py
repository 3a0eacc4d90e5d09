"""The main job on the real model: minutes, so behind `slow`."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.runs import lgym, scalars

CONFIG = Path(__file__).parents[2] / "configs" / "blackjack.yaml"


@pytest.mark.slow
@pytest.mark.long
def test_the_main_job_leaves_always_stay_behind(tmp_path):
    """After 12 rollouts the exact value is far above always-stay (-0.186), the trap that a wrong loss ends
    in."""
    lgym(
        "fit", tmp_path, "smollm2-135m-instruct", CONFIG, trainer__max_epochs=12, trainer__limit_val_batches=0
    )
    metrics = scalars(tmp_path)
    assert list(metrics["blackjack/value_sampled"].values())[-1] > -0.08
    assert list(metrics["blackjack/value_greedy"].values())[-1] > -0.07
    assert max(metrics["policy/logprob_diff_max"].values()) < 0.4  # bf16: different batches round differently
