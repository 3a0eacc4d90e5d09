"""CartPole in words."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from lgym.agents.base import TextAgent

PLACES = (0.4, 1.2)
"""Cart positions (m) from which on it is off the middle, and far off; the episode ends at 2.4."""

SPEEDS = (0.4, 1.2)
"""Cart velocities (m/s) from which on it is moving, and moving fast."""

ANGLES = (1.0, 3.0, 6.0)
"""Pole angles (degrees) from which on it leans slightly, plainly, and far; the episode ends at 12."""

TURNINGS = (0.25, 0.75, 1.5)
"""The pole's angular velocities (rad/s) from which on it is turning slowly, plainly, and fast."""


class CartPoleAgent(TextAgent):
    """Gymnasium's `CartPole-v1`: its four numbers, each as a side and a size in words.

    Few words make states meet: a rollout of thousands of turns asks the model one to two hundred different prompts, each
    computed once. They are still precise enough for the full 500 steps (a linear rule on them gets there).
    """

    system_prompt = (
        "You balance a pole on a cart by pushing the cart left or right, under the side that the pole leans to. "
        "The pole must lean less than twelve degrees, and the cart must stay near the middle. Answer left or right."
    )
    actions = ("left", "right")

    def format_observation(self, observation: Sequence[float]) -> str:
        place, speed, angle, turning = (float(part) for part in observation)
        return (
            f"cart {_word(place, PLACES, 'middle', ('{}', 'far {}'))} "
            f"{_word(speed, SPEEDS, 'still', ('moving {}', 'moving {} fast'))}, "
            f"pole {_word(math.degrees(angle), ANGLES, 'upright', ('slightly {}', '{}', 'far {}'))} "
            f"{_word(turning, TURNINGS, 'still', ('turning {} slowly', 'turning {}', 'turning {} fast'))}"
        )

    def reference_returns(self) -> dict[str, float]:
        """The mean return of pushing at random, over 10,000 episodes, and the most that the environment gives."""
        return {"random": 22.2, "optimal": 500.0}


def _word(amount: float, limits: Sequence[float], none: str, sizes: Sequence[str]) -> str:
    """What to call an amount: the last of `sizes` whose limit it reaches, for the side that it is on, or `none`."""
    reached = bisect_right(limits, abs(amount))
    return sizes[reached - 1].format("left" if amount < 0 else "right") if reached else none
