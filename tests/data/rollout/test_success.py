"""Success of episodes, by the environment's word or by their return, and the episodes that means describe."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import echo
from helpers.collectors import make_collector
from helpers.runs import lgym, scalars
from helpers.scripted import FirstCandidatePolicy
from lgym.data.rollout.env_runner import success_of

LENGTHS = (2, 3, 7)


class TimedEnv(echo.CountingEnv):
    """Ends after so many steps, pays 1 for each."""

    def __init__(self, length: int) -> None:
        self.length = length

    def step(self, action):
        observation, _, _, _, info = super().step(action)
        return observation, 1.0, self._state[1] == self.length, False, info


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"success": True}, 1.0),
        ({"is_success": np.bool_(False)}, 0.0),
        ({"is_success": np.array([1.0])}, 1.0),
        ({"success": "yes"}, None),  # anybody may mean anything by it
        ({}, None),
    ],
)
def test_the_success_in_an_info(info, expected):
    assert success_of(info, None) == expected
    assert success_of({}, expected) == expected, "a step that says nothing changes nothing"


@pytest.mark.parametrize("subprocess_envs", ["false", "true"])
def test_success_rates_of_a_run(tmp_path, model_folder, subprocess_envs):
    """By the environment's word at the last step, in training and in both evaluations; from workers too."""
    lgym(
        "fit",
        tmp_path,
        model_folder,
        trainer__max_epochs=1,
        data__env="helpers.worlds:Saying-v0",
        data__num_envs=2,
        data__episodes_per_rollout=4,
        data__eval_episodes=4,
        data__subprocess_envs=subprocess_envs,
    )
    curves = scalars(tmp_path)
    for name in ("rollout", "val_greedy", "val_sampled"):
        success, mean = (list(curves[f"{name}/{part}"].values()) for part in ("success_rate", "return_mean"))
        assert success == mean  # a return of 1 is a success, and one of 0 is none


def test_a_return_from_which_an_episode_is_a_success(tmp_path, model_folder):
    """Echo pays 1 or 0 and says nothing; of its returns none is 2."""
    for number, (limit, rates) in enumerate([(1.0, None), (2.0, [0.0]), (-1.0, [1.0])]):
        lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, data__success_return=limit)
        curves = scalars(tmp_path, number)
        success = list(curves["rollout/success_rate"].values())
        assert success == (rates or list(curves["rollout/return_mean"].values()))


def test_nobody_says_what_success_is(tmp_path, model_folder):
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    assert not any("success" in name for name in scalars(tmp_path))


def test_every_environment_counts_once():
    """Environments of lengths 2, 3 and 7 that start together, 2 turns of each in a rollout. By the episodes
    that ended in it the mean would be 2, 2.5, 2.5, 4 (2, 7 and 3 end), ...: whoever has ended."""
    collector = timed_collector()
    rollouts = [play(collector) for _ in range(4)]
    means = [float(rollout.reported_episodes.returns.mean()) for rollout in rollouts]
    assert means == [2.0, 2.5, 2.5, 4.0]
    assert [len(rollout.reported_episodes) for rollout in rollouts] == [1, 2, 2, 3]
    assert [float(play(collector).reported_episodes.returns.mean()) for _ in range(5)] == [4.0] * 5


def test_short_episodes_are_all_described():
    """Environments of lengths 1 and 2, 4 turns of each: 4 and 2 end. By one of each the mean of a rollout of
    a thousand answers would be that of a few."""
    collector = timed_collector(1, 2)
    reported = play(collector, turns=8).reported_episodes
    assert sorted(reported.returns.tolist()) == [1.0, 1.0, 2.0, 2.0]
    assert len(play(timed_collector(1, 1), turns=8).reported_episodes) == 8


def test_before_an_episode_has_ended_there_is_no_mean():
    collector = timed_collector(7, 8)
    assert len(play(collector, turns=4).reported_episodes) == 0


def test_the_last_episodes_come_back_with_a_checkpoint():
    """A resumed run would begin to report the short ones anew."""
    collector, other = timed_collector(), timed_collector()
    for _ in range(4):
        play(collector)
    state = collector.state_dict()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert float(play(other).reported_episodes.returns.mean()) == 4.0


def test_episodes_of_whole_rollouts_are_reported_as_they_are():
    """Rollouts that are counted in episodes describe all of theirs."""
    collector = timed_collector()
    rollout = collector.play(FirstCandidatePolicy(), np.random.default_rng(0), episodes=6)
    assert rollout.reported_episodes.returns.tolist() == rollout.episode_returns.tolist()
    assert len(rollout.episode_returns) == 6


def timed_collector(*lengths: int):
    return make_collector(map(TimedEnv, lengths or LENGTHS), echo.CountingAgent())


def play(collector, turns: int = 6):
    return collector.play(FirstCandidatePolicy(), np.random.default_rng(0), turns=turns)
