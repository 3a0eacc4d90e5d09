"""Environments of every kind of space that the general agent knows: three turns of random observations, paid
at random."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from lgym.agents.actions import is_action


class SpacesEnv(gymnasium.Env):
    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._turns = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert is_action(self.action_space, action), action
        self._turns += 1
        return self.observation_space.sample(), float(self.np_random.random()), self._turns == 3, False, {}


SPACES = {
    "Robot-v0": (Dict(robot=Box(-1, 1, (2,)), door=Discrete(3)), Discrete(3, start=1)),
    "Pair-v0": (Tuple((Discrete(5), Box(0, 100, (1,)))), MultiDiscrete([3, 2])),
    "Board-v0": (Box(0, 3, (3, 4), np.int64), MultiBinary(2)),
    "Flags-v0": (MultiBinary(3), Discrete(2)),
    "Counts-v0": (MultiDiscrete([4, 5]), Discrete(4)),
    "Story-v0": (Text(8), Discrete(2)),
    "Spoken-v0": (Discrete(4), Text(5)),
    "Wide-v0": (Discrete(4), MultiDiscrete([20, 20])),
}

for name, (observations, actions) in SPACES.items():
    if name not in gymnasium.registry:
        gymnasium.register(
            name, SpacesEnv, kwargs={"observation_space": observations, "action_space": actions}
        )


def env(action_space: gymnasium.Space) -> SpacesEnv:
    return SpacesEnv(Discrete(2), action_space)
