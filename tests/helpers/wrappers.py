"""Wrappers of a user's own, in a module that imports no torch."""

from __future__ import annotations

import sys

import gymnasium


class ScaledReward(gymnasium.RewardWrapper):
    def __init__(self, env: gymnasium.Env, factor: float) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * float(reward)


class PaidWithoutTorch(gymnasium.RewardWrapper):
    """Pays what it is told where its process has no torch, and else nothing."""

    def __init__(self, env: gymnasium.Env, reward: float) -> None:
        super().__init__(env)
        self.paid = 0.0 if "torch" in sys.modules else reward

    def reward(self, reward):
        return self.paid
