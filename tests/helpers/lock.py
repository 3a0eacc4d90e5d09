"""A combination lock: a reward that random play does not find."""

from __future__ import annotations

import gymnasium

from lgym.agents import TextAgent

WORDS = ("red", "green", "blue", "one", "two", "six", "hall", "attic", "cellar", "sun", "moon", "star")
TURNED = (0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1)
"""The action that opens each of the twelve wheels."""


class LockEnv(gymnasium.Env):
    """The right action leads to the next wheel, the other back to the first; behind the last is a reward of
    1. Random play opens it in one of 2**12 = 4,096 tries."""

    observation_space = gymnasium.spaces.Discrete(len(WORDS))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._wheel = 0
        return 0, {}

    def step(self, action):
        self._wheel = self._wheel + 1 if action == TURNED[self._wheel] else 0
        is_open = self._wheel == len(WORDS)
        return self._wheel % len(WORDS), float(is_open), is_open, False, {}


class LockAgent(TextAgent):
    system_prompt = "Open the lock."
    actions = ("left", "right")

    def format_observation(self, observation) -> str:
        return WORDS[int(observation)]


if "Lock-v0" not in gymnasium.registry:
    gymnasium.register("Lock-v0", LockEnv, max_episode_steps=len(WORDS))
