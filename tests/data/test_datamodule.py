"""The data side of a run: which environment each stage plays."""

from __future__ import annotations

from helpers.runs import lgym, scalars


def test_evaluation_may_play_another_environment(tmp_path, model_folder):
    """Echo pays 0 or 1 a turn; with `sign=-1`, 0 or -1. Of two settings, the one that is not overridden stays."""
    kwargs = {"data__env_kwargs": "{turns: 2, sign: 1}", "data__eval_env_kwargs": "{sign: -1}"}
    lgym("fit", tmp_path, model_folder, **kwargs, trainer__max_epochs=1)
    logged = scalars(tmp_path)
    assert min(logged["rollout/return_mean"].values()) > 0
    assert max(logged["val_sampled/return_mean"].values()) < 0
    assert list(logged["val_sampled/length_mean"].values()) == [2.0]


def test_evaluation_plays_the_same_environment_by_default(tmp_path, model_folder):
    lgym("fit", tmp_path, model_folder, data__env_kwargs="{sign: -1}", trainer__max_epochs=1)
    logged = scalars(tmp_path)
    assert max(logged["rollout/return_mean"].values()) < 0
    assert max(logged["val_sampled/return_mean"].values()) < 0
