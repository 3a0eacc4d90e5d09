"""Settings of the data that cannot be, or do not go together, are refused before a model is loaded."""

from __future__ import annotations

import pytest

from lgym.data.data_config import DataConfig


def settings(**changes) -> DataConfig:
    """Settings that go together, but for these."""
    return DataConfig(**{"env": "Counting-v0", "episodes_per_rollout": 8, **changes})


def test_limits_of_the_data_are_refused():
    """Catches a history below 0, a time limit of 0, and self-imitation of turns whose prompts hold what came
    before."""
    for fine in ({}, {"history": "full"}, {"self_imitation": object()}):
        settings(**fine)
    with pytest.raises(ValueError, match="data.history is -1"):
        settings(history=-1)
    for turns in (0, -16):
        with pytest.raises(ValueError, match=f"data.turns_per_rollout is {turns}; it must be 1 or more"):
            settings(episodes_per_rollout=None, turns_per_rollout=turns)
    for name in ("exploration_bonus", "dagger"):
        with pytest.raises(ValueError, match=f"data.{name} .* data.logged_episodes are not played"):
            settings(logged_episodes=["log.jsonl"], **{name: object()})
    with pytest.raises(ValueError, match="logged_episodes hold the texts that were shown"):
        settings(logged_episodes=["log.jsonl"], working_memory=object())
    with pytest.raises(ValueError, match="data.env_timeout is 0 seconds"):
        settings(env_timeout=0.0)
    for changes in (
        {"episodes_per_rollout": None, "turns_per_rollout": 16},
        {"history": 1},
        {"history": "full"},
    ):
        with pytest.raises(ValueError, match="data.self_imitation keeps whole episodes"):
            settings(self_imitation=object(), **changes)
        with pytest.raises(ValueError, match="data.dagger keeps whole episodes"):
            settings(dagger=object(), **changes)


def test_a_place_for_demonstrations_without_any_is_refused():
    settings(demonstration_env_kwargs={"size": 8}, demonstrations=[object()])
    with pytest.raises(
        ValueError, match="data.demonstration_env_kwargs is where data.demonstrations are played"
    ):
        settings(demonstration_env_kwargs={"size": 8})
