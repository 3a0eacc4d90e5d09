"""Guess a number by hints, and the exact values of guessing well and at random."""

from typing import Any

import gymnasium
import numpy as np

from lgym.types import ConfigError


class GuessNumberEnv(gymnasium.Env[np.ndarray, Any]):
    """A number that is drawn at each reset, and hints whether a guess was too low or too high.

    An observation is the lowest and the highest number that the hints leave open, the last hint (-1: too low,
    1: too high, 0: none yet) and the guesses that are left. The right guess pays 1 and ends the episode, as
    the last guess does, which pays 0 where it is wrong. `info["success"]` says whether it was found.

    Args:
        lowest: of the numbers.
        highest: of the numbers, above `lowest`.
        guesses: of an episode, one or more.
        render_mode: ansi, or null.
    """

    metadata = {"render_modes": ["ansi"]}

    def __init__(
        self, lowest: int = 0, highest: int = 1024, guesses: int = 10, render_mode: str | None = None
    ) -> None:
        if highest <= lowest or guesses < 1:
            raise ConfigError(
                f"lowest={lowest}, highest={highest}, guesses={guesses}: give a highest number above the "
                "lowest, and at least one guess."
            )
        self.lowest = lowest
        self.highest = highest
        self.guesses = guesses
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Discrete(highest - lowest + 1, start=lowest)
        self.observation_space = gymnasium.spaces.Box(
            np.array([lowest, lowest, -1, 0]), np.array([highest, highest, 1, guesses]), dtype=np.int64
        )
        self._start()

    def _start(self) -> None:
        self._bounds = self.lowest, self.highest
        self._hint = 0
        self._left = self.guesses

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        # A stream of its own: guesses of an action space with the same seed would always be right.
        draw = np.random.default_rng(int(self.np_random.integers(2**63)))
        self.number = int(draw.integers(self.lowest, self.highest + 1))
        self._start()
        return self._observation(), {"success": False}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        guess = int(action)
        self._left -= 1
        self._hint = (guess > self.number) - (guess < self.number)
        low, high = self._bounds
        if self._hint < 0:
            self._bounds = max(low, guess + 1), high
        elif self._hint > 0:
            self._bounds = low, min(high, guess - 1)
        found = self._hint == 0
        return self._observation(), float(found), found or self._left == 0, False, {"success": found}

    def render(self) -> str | None:
        low, high = self._bounds
        return f"{low} to {high}, {self._left} guesses left" if self.render_mode == "ansi" else None

    def _observation(self) -> np.ndarray:
        return np.array([*self._bounds, self._hint, self._left])


gymnasium.register("lgym/GuessNumber-v0", "lgym.envs.guess_number:GuessNumberEnv")


def reference_returns(numbers: int, guesses: int) -> dict[str, float]:
    """Mean returns of guesses at random among those that the hints leave open, and of the best.

    f_g(n) = 1/n + 2/n² Σ_{k<n} k f_{g-1}(k),   f_0 = 0;   best: min(n, 2^g - 1) / n

    Args:
        numbers: n, of all.
        guesses: g, of an episode.
    """
    sizes = np.arange(numbers + 1)
    found = np.zeros(numbers + 1)
    for _ in range(guesses):
        below = np.cumsum(sizes * found)[:-1]  # of k < n, for n from 1
        found = np.concatenate([[0.0], 1 / sizes[1:] + 2 * below / sizes[1:] ** 2])
    return {"random": float(found[-1]), "optimal": min(numbers, 2**guesses - 1) / numbers}
