"""An agent for CartPole."""

import math
from bisect import bisect_right
from collections.abc import Sequence

from lgym.agents.base import TextAgent


class CartPoleAgent(TextAgent):
    """Gymnasium's `CartPole-v1`: its four numbers, each as a side and a size in words.

    Few words make states meet: a rollout of thousands of turns asks the model one to two hundred different
    prompts, each computed once. They are still precise enough for the full 500 steps (a linear rule on them
    gets there).
    """

    system_prompt = (
        "You balance a pole on a cart by pushing the cart left or right, under the side that the pole leans "
        "to. The pole must lean less than twelve degrees, and the cart must stay near the middle. Answer "
        "left or right."
    )
    actions = ("left", "right")

    def format_observation(self, observation: Sequence[float]) -> str:
        position, velocity, angle, angular_velocity = (float(part) for part in observation)
        turning = ("turning {} slowly", "turning {}", "turning {} fast")
        # in meters (the episode ends at 2.4), m/s, degrees (it ends at 12) and rad/s
        return (
            f"cart {_side(position, (0.4, 1.2), 'middle', ('{}', 'far {}'))} "
            f"{_side(velocity, (0.4, 1.2), 'still', ('moving {}', 'moving {} fast'))}, "
            f"pole {_side(math.degrees(angle), (1.0, 3.0, 6.0), 'upright', ('slightly {}', '{}', 'far {}'))} "
            f"{_side(angular_velocity, (0.25, 0.75, 1.5), 'still', turning)}"
        )

    def reference_returns(self) -> dict[str, float]:
        """The mean return of random actions, over 10,000 episodes, and the environment's maximum."""
        return {"random": 22.2, "optimal": 500.0}


def _side(amount: float, limits: Sequence[float], none: str, sizes: Sequence[str]) -> str:
    reached = bisect_right(limits, abs(amount))
    return sizes[reached - 1].format("left" if amount < 0 else "right") if reached else none
