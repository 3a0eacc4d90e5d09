"""The tiniest environments: say the word that was shown, and one whose reward comes a turn late."""

from __future__ import annotations

import gymnasium
import numpy as np

from lgym.agents import TextAgent

WORDS = ("red", "green", "blue")


class EchoEnv(gymnasium.Env):
    """One turn: reward 1 for the action whose number was shown, else 0. With `sign=-1` the reward is turned
    round."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, sign: float = 1.0, turns: int = 1) -> None:
        self.sign = sign
        self.turns = turns

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = self.turns
        return self._show(), {}

    def step(self, action):
        reward = self.sign * float(action == self._shown)
        self._left -= 1
        return self._show(), reward, self._left == 0, False, {}

    def _show(self) -> int:
        self._shown = int(self.np_random.integers(3))
        return self._shown


class EchoAgent(TextAgent):
    system_prompt = "Say the word."
    actions = WORDS

    def format_observation(self, observation) -> str:
        return WORDS[int(observation)]

    def reference_returns(self) -> dict[str, float]:
        return {"random": 1 / 3, "optimal": 1.0}


class ForgivingEchoAgent(EchoAgent):
    """For models that speak: what cannot be read ends the episode and pays nothing."""

    fallback = "end_episode"
    penalty = 0.0


class CountingEnv(gymnasium.Env):
    """Shows the turn's number and pays it, for ever; a time limit makes truncation. Its path depends on the
    actions."""

    observation_space = gymnasium.spaces.Box(0, 10**6, (2,), dtype=np.int64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state = [int(self.np_random.integers(5)), 0]
        return np.array(self._state), {}

    def step(self, action):
        self._state = [self._state[0] + int(action) + int(self.np_random.integers(2)), self._state[1] + 1]
        return np.array(self._state), float(self._state[1]), False, False, {}


class CountingAgent(TextAgent):
    system_prompt = "Count."
    actions = ("stop", "go on")

    def format_observation(self, observation) -> str:
        return f"{int(observation[0])} {int(observation[1])}"


for name, env in (("Echo-v0", EchoEnv), ("Counting-v0", CountingEnv)):
    if name not in gymnasium.registry:
        gymnasium.register(name, env)
