"""Rules to learn from before the first reinforcement: each has `act(observation, info)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lgym.envs import blackjack
from lgym.types import ConfigError


class Uniform:
    """Any action, each as often: shows the form of an answer without favouring one."""

    def __init__(self, actions: int, seed: int = 0) -> None:
        """
        Args:
            actions: how many a `Discrete` space has.
            seed: of the draws.
        """
        self._actions, self._rng = actions, _generator(seed)

    def act(self, observation: Any, info: Mapping[str, Any]) -> int:
        return int(self._rng.integers(self._actions))


class BasicStrategy:
    """The optimal play of `Blackjack-v1` with its default rules."""

    def __init__(self) -> None:
        self._action = dict(zip(blackjack.states(), blackjack.optimal_policy().tolist(), strict=True))

    def act(self, observation: blackjack.State, info: Mapping[str, Any]) -> int:
        """0 to stay, 1 to hit."""
        player_sum, dealer_card, usable_ace = (int(part) for part in observation)
        return self._action[player_sum, dealer_card, usable_ace]


class DealersRule:
    """The dealer's own play of `Blackjack-v1`, hit below 17, but for a share of actions that are drawn from both alike.

    Undisturbed it is worth -0.079 a hand. Disturbed, it shows that hands differ without showing how to play them.
    """

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        """
        Args:
            noise: the share of actions that are drawn, 0 to 1.
            seed: of the draws.
        """
        if not 0.0 <= noise <= 1.0:
            raise ConfigError(f"noise is {noise}; it must lie between 0 and 1.")
        self._noise, self._rng = noise, _generator(seed)

    def act(self, observation: blackjack.State, info: Mapping[str, Any]) -> int:
        """0 to stay, 1 to hit."""
        drawn, action = self._rng.random() < self._noise, int(self._rng.integers(2))
        return action if drawn else int(int(observation[0]) < 17)


class BalancePole:
    """Pushes the cart of `CartPole-v1` to where the pole is falling, and a little back to the middle: for all 500 steps."""

    def act(self, observation: Sequence[float], info: Mapping[str, Any]) -> int:
        """0 to push left, 1 to push right."""
        place, speed, angle, turning = (float(part) for part in observation)
        return int(angle + 0.3 * turning + 0.05 * place + 0.1 * speed > 0)


def _generator(seed: int) -> np.random.Generator:
    """Not that of an environment which is reset with the same number."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
