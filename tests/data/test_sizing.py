"""The size of a rollout where none is given."""

from __future__ import annotations

import pytest

from helpers import echo
from helpers.learners import RecordingLearner, attach
from lgym.data import RolloutDataModule
from lgym.data.random_play import RandomPlay
from lgym.data.sizing import default_envs, rollout_size


def play(distinct_share: float) -> RandomPlay:
    """4,096 random turns, of which each this share met a new prompt."""
    return RandomPlay(distinct=[max(1, round(distinct_share * turn)) for turn in range(1, 4097)])


@pytest.mark.parametrize(
    ("distinct_share", "length", "num_envs", "expected"),
    [
        (1.0, 500.0, None, (8, 2048)),  # Acrobot: every prompt is new, and episodes are long
        (0.0, 8.0, None, (256, 32768)),  # FrozenLake: few prompts, short episodes
        (0.0, 12_000.0, None, (64, 32768)),  # CliffWalking at random
        (0.1, 20.0, None, (256, 8192)),
        (0.1, 20.0, 24, (24, 8184)),  # what is given stays, and turns are a multiple of it
    ],
)
def test_turns_follow_the_distinct_prompts_and_environments_the_episodes(
    distinct_share, length, num_envs, expected
):
    """Catches 64 environments with 128 turns each where episodes have 500: none ended, and no return was
    shown."""
    assert rollout_size(play(distinct_share), length, num_envs) == expected


def sized(learner=None, **settings) -> RolloutDataModule:
    data = RolloutDataModule(env="Echo-v0", agent=echo.EchoAgent(), **settings)
    attach(data, learner or RecordingLearner())
    data.size_rollout(whole_episodes=data.learner.needs_whole_episodes)
    return data


def test_a_setting_that_is_given_wins(capsys):
    data = sized(turns_per_rollout=64)
    assert (data.num_envs, data.turns_per_rollout, data.episodes_per_rollout) == (16, 64, None)
    assert not capsys.readouterr().out
    assert sized(num_envs=10).num_envs == 10


def test_what_is_decided_is_said_and_fits_the_algorithm(capsys):
    data = sized()
    assert data.turns_per_rollout % data.num_envs == 0
    assert f"{data.turns_per_rollout:,} turns (data.turns_per_rollout)" in capsys.readouterr().out
    learner = RecordingLearner()
    learner.needs_whole_episodes = True
    grouped = sized(learner, group_size=4)
    assert grouped.turns_per_rollout is None
    assert grouped.episodes_per_rollout % 4 == 0


def test_a_resumed_run_keeps_the_size_that_it_began_with(monkeypatch):
    """On a slower machine random play may end earlier, and decide otherwise."""
    state = {"ranks": [], "rollouts": 0, "size": {"num_envs": 12, "turns_per_rollout": 240}}
    data = sized()
    data.load_state_dict(state)
    assert (data.num_envs, data.turns_per_rollout) == (12, 240)
    given = sized(turns_per_rollout=64)
    given.load_state_dict(state)
    assert given.turns_per_rollout == 64


@pytest.mark.parametrize(("turns", "expected"), [(None, 16), (64, 16), (20, 10), (7, 7)])
def test_environments_share_the_turns_of_a_rollout(turns, expected):
    assert default_envs(turns) == expected
