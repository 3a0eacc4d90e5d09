"""Settings of the data that cannot be, or do not go together, are refused before a model is loaded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lgym.data.validation import require_sound


def data_settings(**changes):
    """Settings that go together, but for these."""
    counts = dict.fromkeys(
        ("num_envs", "update_epochs", "minibatch_size", "sft_batch_size", "eval_episodes"), 1
    )
    sampling = {
        "group_size": 1,
        "dynamic_sampling_groups": 0,
        "episodes_per_rollout": 8,
        "turns_per_rollout": None,
    }
    reading = {"history": 0, "max_observation_tokens": None, "env_timeout": 0.1, "self_imitation": None}
    return SimpleNamespace(**(counts | sampling | reading | changes))


def test_limits_of_the_data_are_refused():
    """Catches a history below 0, a time limit of 0, and self-imitation of turns whose prompts hold what came
    before."""
    for fine in ({}, {"history": "full"}, {"self_imitation": object()}):
        require_sound(data_settings(**fine))
    with pytest.raises(ValueError, match="data.history is -1"):
        require_sound(data_settings(history=-1))
    with pytest.raises(ValueError, match="data.env_timeout is 0 seconds"):
        require_sound(data_settings(env_timeout=0.0))
    for changes in (
        {"episodes_per_rollout": None, "turns_per_rollout": 8},
        {"history": 1},
        {"history": "full"},
    ):
        with pytest.raises(ValueError, match="data.self_imitation keeps whole episodes"):
            require_sound(data_settings(self_imitation=object(), **changes))
