"""CartPole in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lgym.agents.base import TextAgent
from lgym.agents.words import NUMBERS

ANGLE = math.radians(1)
"""Unit of the pole's angle: one degree, in radians."""

TURNING = 0.25
"""Unit of the pole's angular velocity, in radians a second."""

PLACE = 0.5
"""Unit of the cart's position (m) and velocity (m/s)."""


class CartPoleAgent(TextAgent):
    """Gymnasium's `CartPole-v1`: its four numbers, each as a side and a rounded size.

    Rounding makes states meet: balancing well takes the model a few hundred different prompts, each computed once a
    rollout, and is still precise enough for the full 500 steps (a linear rule on the rounded numbers gets them).
    """

    system_prompt = (
        "You balance a pole on a cart by pushing the cart left or right, under the side that the pole leans to. "
        "The pole must lean less than twelve degrees, and the cart must stay near the middle. Answer left or right."
    )
    actions = ("left", "right")

    def format_observation(self, observation: Sequence[float]) -> str:
        place, speed, angle, turning = (float(part) for part in observation)
        return (
            f"pole {_side(angle / ANGLE)} turning {_side(turning / TURNING)}, "
            f"cart {_side(place / PLACE)} moving {_side(speed / PLACE)}"
        )

    def baselines(self) -> dict[str, float]:
        """The mean return of pushing at random, over 10,000 episodes, and the most that the environment gives."""
        return {"random": 22.2, "optimal": 500.0}


def _side(amount: float) -> str:
    """A signed size as a word each for side and size, up to twenty: `left three`; 0 is `middle`."""
    size = min(round(abs(amount)), 20)
    if size == 0:
        return "middle"
    return f"{'left' if amount < 0 else 'right'} {NUMBERS[size]}"
