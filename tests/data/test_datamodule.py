"""The data side of a run: which environment each stage plays."""

from __future__ import annotations

import types

from helpers import tiny
from helpers.runs import lgym, scalars
from lgym.agents import FrozenLakeAgent
from lgym.data import RolloutDataModule


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


def lakes(**kwargs):
    """A data module for Frozen Lake before a model that chooses, of which there is only the tokenizer."""
    data = RolloutDataModule("FrozenLake-v1", FrozenLakeAgent(), episodes_per_rollout=1, num_envs=1, **kwargs)
    learner = types.SimpleNamespace(tokenizer=tiny.tokenizer(), context_length=4096, chooses=True)
    data.trainer = types.SimpleNamespace(lightning_module=learner, global_rank=0)
    return data


def first_words(data, stage):
    """What a stage's model is shown first."""
    [slot] = data._make_collector(stage, 0)._slots
    slot.reset(0)
    return slot.context.observation_text


def test_evaluation_is_worded_by_its_own_environment():
    """The goal of the 4x4 lake is 3 down and 3 right; of the 8x8 lake 7 and 7, in other words of slippery ice too."""
    small, large = {"map_name": "4x4", "is_slippery": False}, {"map_name": "8x8", "is_slippery": True}
    data = lakes(env_kwargs=small, eval_env_kwargs=large)
    assert "Goal: 3 down and 3 right" in first_words(data, "fit")
    for stage in ("validate", "test", "predict"):
        assert "Goal: 7 down and 7 right" in first_words(data, stage)
        assert "slippery" in data.prompt_builder(stage).render((), "")
    assert "slippery" not in data.prompt_builder("fit").render((), "")
    same = lakes(env_kwargs=small)
    assert same.prompt_builder("test") is same.prompt_builder("fit")
