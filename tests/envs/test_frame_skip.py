"""Frame skip: one answer for several steps of the environment."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward

from helpers.collectors import make_collector
from helpers.echo import CountingAgent
from helpers.learners import RecordingLearner, attach
from helpers.scripted import FirstCandidatePolicy
from lgym.data import RolloutDataModule
from lgym.data.data_config import DataConfig
from lgym.envs import make_env
from lgym.envs.frame_skip import FrameSkip


class Script(gymnasium.Env):
    """Step n pays n and shows [n]; it terminates or truncates in the step that it is told."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), dtype=np.int64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, terminates: int = 0, truncates: int = 0) -> None:
        self.terminates, self.truncates = terminates, truncates
        self.actions: list[int] = []

    def reset(self, *, seed=None, options=None):
        self.n = 0
        return np.array([0]), {}

    def step(self, action):
        self.n += 1
        self.actions.append(action)
        return np.array([self.n]), self.n, self.n == self.terminates, self.n == self.truncates, {"n": self.n}


def test_rewards_add_up_and_the_last_observation_is_shown():
    """1 + 2 + 3, then 4 + 5 + 6, for the same action three times each."""
    env = FrameSkip(Script(), 3)
    env.reset(seed=0)
    assert env.step(1) == (np.array([3]), 6.0, False, False, {"n": 3})
    assert env.step(0) == (np.array([6]), 15.0, False, False, {"n": 6})
    assert env.unwrapped.actions == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("ends", "flags"), [({"terminates": 5}, (True, False)), ({"truncates": 5}, (False, True))]
)
def test_an_end_in_the_middle_of_a_skip_ends_the_turn(ends, flags):
    """4 + 5, with the observation of the end, and no step behind it."""
    env = FrameSkip(Script(**ends), 3)
    env.reset(seed=0)
    env.step(0)
    assert env.step(0) == (np.array([5]), 9.0, *flags, {"n": 5})
    assert env.unwrapped.n == 5


def test_the_time_limit_counts_the_environments_steps():
    """Counting-v0 for 7 steps in skips of 3: turns of 3, 3 and 1 steps, which pay 6, 15 and 7."""
    envs = [make_env("Counting-v0", max_episode_steps=7, frame_skip=3) for _ in range(2)]
    rollout = make_collector(envs, CountingAgent()).play(FirstCandidatePolicy(), None, episodes=2)
    assert rollout.rewards.tolist() == [[6.0, 15.0, 7.0]] * 2
    assert rollout.truncated.tolist() == [[False, False, True]] * 2
    assert rollout.episode_lengths.tolist() == [3.0, 3.0]


def test_wrappers_see_one_step_a_turn():
    """Squared after the sum, (1 + 2)**2, not before, 1 + 4."""

    def square(env):
        return TransformReward(env, lambda reward: float(reward) ** 2)

    env = make_env("Counting-v0", wrappers=[square], frame_skip=2)
    env.reset(seed=0)
    assert env.step(0)[1] == 9.0


@pytest.mark.parametrize("subprocess_envs", [False, True])
def test_every_stage_skips(subprocess_envs):
    """Training, evaluation, demonstrations and `play` make their environments at one place; in workers too."""
    data = RolloutDataModule(
        env="Counting-v0",
        agent=CountingAgent(),
        max_episode_steps=4,
        frame_skip=2,
        num_envs=1,
        episodes_per_rollout=2,
        subprocess_envs=subprocess_envs,
    )
    attach(data, RecordingLearner())
    for stage in ("fit", "validate"):
        collector = data.make_collector(stage)
        try:
            rollout = collector.play(FirstCandidatePolicy(), None, episodes=1)
        finally:
            collector.close()
        assert rollout.rewards.tolist() == [[3.0, 7.0]]


def test_a_skip_of_no_steps_is_refused():
    with pytest.raises(ValueError, match="data.frame_skip is 0; it must be 1 or more"):
        DataConfig(env="Counting-v0", episodes_per_rollout=8, frame_skip=0)
