"""Minibatches of a live rollout."""

from __future__ import annotations

from helpers.runs import lgym, scalars
from lgym.data.dataset import EvaluationDataset


def test_contexts_that_nobody_acted_on_are_left_out(tmp_path, model_folder):
    """An observation met only for its value would make a minibatch without turns: NaN metrics, or a crash."""
    lgym(
        "fit", tmp_path, model_folder, trainer__max_epochs=2, trainer__limit_val_batches=0, data__env="Counting-v0",
        data__agent="helpers.echo.CountingAgent", data__episodes_per_rollout=None, data__turns_per_rollout=8,
        data__minibatch_size=1, data__max_episode_steps=3,
    )  # fmt: skip
    metrics = scalars(tmp_path)
    for name in ("loss/policy", "loss/value", "policy/entropy", "policy/logprob_diff_max"):
        assert all(value == value for value in metrics[name].values()), name


def test_a_process_without_episodes_makes_no_environments():
    """Where an evaluation has fewer episodes than a run has processes."""

    def made():
        raise AssertionError("Environments were made.")

    idle = EvaluationDataset(None, made, seed=None, episodes=0, progress=print)
    assert list(idle) == []
