"""The environment that probes learning: one or two turns, one thing to learn."""

from typing import Any, Literal

import gymnasium
import numpy as np

PROBE = "lgym/Probe-v0"

QUESTION = 2
"""Shown at the second turn."""

Pays = Literal["always", "sign 0", "answer 1", "same answer"]


class ProbeEnv(gymnasium.Env[np.int64, np.int64]):
    """Shows one of its first `signs`; with two turns a question behind it, and pays at the end.

    Args:
        turns: 1 or 2.
        signs: 1 or 2, shown equally often.
        pays: 1 for it, else 0: any answer, the first sign, the second answer, or the answer that is the sign.
    """

    def __init__(self, turns: int = 1, signs: int = 1, pays: Pays = "always") -> None:
        self.observation_space = gymnasium.spaces.Discrete(3)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.turns = turns
        self.signs = signs
        self.pays = pays

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self._sign = self.np_random.integers(self.signs)
        self._left = self.turns
        return self._sign, {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        paid = {
            "always": True,
            "sign 0": self._sign == 0,
            "answer 1": action == 1,
            "same answer": action == self._sign,
        }[self.pays]
        return np.int64(QUESTION), float(paid and self._left == 0), self._left == 0, False, {}


gymnasium.register(PROBE, "lgym.envs.probe:ProbeEnv")
