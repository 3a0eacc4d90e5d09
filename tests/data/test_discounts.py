"""Discounts that follow from random play: far-sighted where an episode is to be kept going, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from helpers.learners import RecordingLearner, attach
from lgym.agents import GeneralAgent
from lgym.data import RolloutDataModule
from lgym.data.discounts import discount_choices
from lgym.data.random_play import RandomPlay, play_at_random
from lgym.envs import make_env
from lgym.modules import A2C, PPO
from lgym.types import ConfigError


def played(limit: int | None, pays: float, episodes: int = 20) -> RandomPlay:
    """Episodes of 10 turns and more that pay the same for each."""
    lengths = list(range(10, 10 + episodes))
    return RandomPlay(returns=[pays * length for length in lengths], lengths=lengths, time_limit=limit)


def found(play: RandomPlay) -> dict[str, float]:
    return {choice.name: choice.value for choice in discount_choices(play)}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (500, {"gamma": 0.998, "gae_lambda": 0.98}),
        (200, {"gamma": 0.995, "gae_lambda": 0.95}),
        (5000, {"gamma": 0.999, "gae_lambda": 0.99}),
        (None, {"gamma": 0.999, "gae_lambda": 0.99}),
        (100, {}),
        (10, {}),
    ],
)
def test_it_looks_as_far_as_an_episode_may_go(limit, expected):
    """Catches a game of 500 turns of which the last 400 count for nothing."""
    assert found(played(limit, pays=1.0)) == expected


def test_where_episodes_are_to_be_ended_nothing_changes():
    """Catches a far-sighted discount on the way to a goal, where it is noise; and one from a few episodes, or
    from those that a time limit made all alike."""
    assert found(played(500, pays=-1.0)) == {}
    assert found(played(500, pays=0.0)) == {}
    assert found(played(500, pays=1.0, episodes=5)) == {}
    assert found(replace(played(500, pays=1.0), tries=False)) == {}
    assert found(RandomPlay(returns=[1.0, 2.0] * 10, lengths=[500] * 20, time_limit=500)) == {}
    assert found(RandomPlay(returns=[20.0, 19.0] * 10, lengths=[30, 10] * 10, time_limit=500)) != {}
    assert found(RandomPlay(returns=[20.0, 19.0, 0.0] * 10, lengths=[30, 10, 60] * 10, time_limit=500)) == {}


@pytest.mark.parametrize(
    ("env", "looks_far"), [("CartPole-v1", True), ("Acrobot-v1", False), ("Taxi-v4", False)]
)
def test_real_games(env, looks_far):
    make, agent = partial(make_env, env), GeneralAgent()
    agent.bind(make())
    play = play_at_random(make, agent, history=0, episodes=12, turns=200, seed=0)
    assert bool(found(play)) == looks_far


def test_what_is_decided_is_said_and_what_is_given_wins(capsys):
    """Catches a line about a discount that the run does not have."""
    data = attach(RolloutDataModule(env="CartPole-v1", seed=1), RecordingLearner())
    data.setup("fit")
    assert "model.gamma: 0.998  # longer episodes pay more, and may have 500 turns" in capsys.readouterr().out
    assert (data.gamma, data.gae_lambda) == (0.998, 0.98)
    data = attach(RolloutDataModule(env="CartPole-v1", seed=1), RecordingLearner(open_settings={"gamma"}))
    data.setup("fit")
    assert "gae_lambda" not in capsys.readouterr().out
    assert (data.gamma, data.gae_lambda) == (0.998, 0.95)


def test_a_resumed_run_keeps_its_discounts():
    data = attach(RolloutDataModule(env="CartPole-v1", seed=1), RecordingLearner())
    data.setup("fit")
    state = data.measured_state()
    resumed = attach(RolloutDataModule(env="CartPole-v1", seed=1, turns_per_rollout=8), RecordingLearner())
    resumed.load_measured_state(state)
    assert (resumed.gamma, resumed.gae_lambda) == (0.998, 0.98)
    data.load_measured_state({"num_envs": 8})
    assert (data.gamma, data.gae_lambda) == (0.99, 0.95)


def test_an_algorithm_takes_them_from_its_run():
    """Catches a decision that is said and not learned by, and one over what is given."""
    data = RolloutDataModule(env="CartPole-v1", seed=1)
    data.gamma, data.gae_lambda = 0.998, 0.98
    modules = PPO(), PPO(gamma=0.5), A2C()
    assert [(m.gamma, m.gae_lambda) for m in modules] == [(0.99, 0.95), (0.5, 0.95), (0.99, 1.0)]
    for module in modules:
        attach(data, module)
        module.trainer = data.trainer
        data.trainer.datamodule = data
    assert [(m.gamma, m.gae_lambda) for m in modules] == [(0.998, 0.98), (0.5, 0.98), (0.998, 1.0)]
    assert modules[1].open_settings == {"gae_lambda", "demonstrations"}
    with pytest.raises(ConfigError, match="gamma is 1.5"):
        PPO(gamma=1.5)
