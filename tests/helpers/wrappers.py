"""A wrapper of a user's own."""

from __future__ import annotations

import gymnasium


class ScaledReward(gymnasium.RewardWrapper):
    def __init__(self, env: gymnasium.Env, factor: float) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * float(reward)
