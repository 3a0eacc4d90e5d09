"""Dynamic sampling: a group is played in addition for each whose returns were all the same."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from helpers.collectors import make_collector
from helpers.echo import EchoAgent
from helpers.scripted import FirstCandidatePolicy
from lgym.data.rollout.dynamic_sampling import DynamicSampling


class EvenSeedEnv(gymnasium.Env):
    """One turn. Pays the action in episodes from even seeds, and nothing in the others."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._pays = seed % 2 == 0
        return 0, {}

    def step(self, action):
        return 0, float(self._pays * action), True, False, {}


@pytest.mark.parametrize(
    ("most", "second"), [(0, [102, 103]), (1, [103, 104, 105]), (5, [103, 104, 105, 106])]
)
def test_zero_variance_groups_are_followed_by_others(most, second):
    """Groups of 8 from seeds 100 and 101; that of 101 has zero variance, and 102 is played for it. The
    rollout behind that has 103 and 104, then 105 for 103, and where it may, 106 for 105."""
    envs = [EvenSeedEnv() for _ in range(16)]
    player = make_collector(envs, EchoAgent(), group_size=8, dynamic_sampling_groups=most)
    for expected in ([100, 101, 102] if most else [100, 101]), second:
        rollout = player.play(FirstCandidatePolicy(), np.random.default_rng(0), episodes=16)
        seeds, counts = rollout.reset_seeds[rollout.mask].unique(return_counts=True)
        assert seeds.tolist() == expected
        assert set(counts.tolist()) == {8}
        assert len(rollout.episode_returns) == 8 * len(expected)


def test_a_group_counts_when_its_last_episode_ends():
    """Whatever the order in which they end; two groups may be asked for."""
    sampling = DynamicSampling(group_size=2, max_groups=2)
    assert [sampling.ended(*episode) for episode in [(3, 1.0), (0, 0.0), (1, 0.5), (2, 1.0)]] == [0, 0, 0, 2]
    assert [sampling.ended(*episode) for episode in [(4, 1.0), (5, 1.0), (6, 1.0), (7, 1.0)]] == [0, 2, 0, 0]
