"""Environments that cannot be solved from the observation in hand."""

from __future__ import annotations

import gymnasium
import numpy as np

from helpers.echo import WORDS
from lgym.agents import TextAgent


class LaterEnv(gymnasium.Env):
    """Shows a word, whatever is answered, and then asks for it: reward 1 for its number in the second
    turn."""

    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._word, self._asked = int(self.np_random.integers(3)), False
        return self._word, {}

    def step(self, action):
        if self._asked:
            return 3, float(action == self._word), True, False, {}
        self._asked = True
        return 3, 0.0, False, False, {}


class LaterAgent(TextAgent):
    system_prompt = "Say the word."
    actions = WORDS

    def format_observation(self, observation) -> str:
        return [*WORDS, "which?"][int(observation)]


class NamesEnv(gymnasium.Env):
    """One turn: shows a name of eight letters a or b and pays 1 for the answer that belongs to it.

    There are 48 names, sixteen to an answer, each shown in every 48th episode; after 768 episodes there are
    48 others. So what is learned of some is of no use for the next.
    """

    observation_space = gymnasium.spaces.MultiBinary(8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self._answer = seed % 3
        name = np.random.default_rng(seed // 768).permutation(256)[seed % 48]
        return np.array([name >> bit & 1 for bit in range(8)], dtype=np.int8), {}

    def step(self, action):
        return np.zeros(8, dtype=np.int8), float(action == self._answer), True, False, {}


class NamesAgent(TextAgent):
    """Shows of what it remembers the best answer."""

    system_prompt = "Say the word."
    actions = WORDS

    def format_observation(self, observation) -> str:
        return "".join("ab"[int(letter)] for letter in observation)

    def summarize(self, turns) -> str:
        return turns[-1].answer

    def render_memory(self, observation_text, recent, similar) -> str:
        return f"{observation_text} {similar[0].text if similar and similar[0].mean_return > 0.5 else '-'}"


for name, env in (("Later-v0", LaterEnv), ("Names-v0", NamesEnv)):
    if name not in gymnasium.registry:
        gymnasium.register(name, env)
