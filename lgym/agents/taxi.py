"""An agent for Taxi."""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.taxi import MAP, TaxiEnv

from lgym.agents.base import TextAgent
from lgym.agents.grid import offset_text, sides_text
from lgym.envs.tabular import reference_returns

STANDS = ((0, 0), (0, 4), (4, 0), (4, 3))  # row and column of the red, green, yellow and blue stand

IN_TAXI = 4  # the passenger's location when aboard


class TaxiAgent(TextAgent):
    """Gymnasium's `Taxi-v4`: the offset to where to go next, and which sides are walls.

    Until the passenger is aboard that is the passenger, and the destination is left out: it says nothing
    about what to do yet. So the 400 states read as 196 texts, and where two read alike the same actions are
    best.

    Args:
        allowed_only: leave out the candidates that change nothing, as the environment's `info["action_mask"]`
            says: driving into walls, picking up where nobody waits, dropping away from the four stands.
    """

    system_prompt = (
        "You drive a taxi. Drive to the passenger, pick the passenger up, drive to the destination and drop "
        "the passenger there. You cannot drive through walls. Answer with one word: left, down, right, up, "
        "pick or drop."
    )
    actions = ("down", "up", "right", "left", "pick", "drop")  # in the order of Gymnasium's numbers

    def __init__(self, allowed_only: bool = True) -> None:
        self.allowed_only = allowed_only
        self._taxi: TaxiEnv | None = None
        self._steps = 200  # the time limit that the environment is registered with

    def bind(self, env: gymnasium.Env) -> None:
        """Read the tables and the time limit that the reference returns depend on."""
        if isinstance(env.unwrapped, TaxiEnv):
            self._taxi = env.unwrapped
            self._steps = (env.spec and env.spec.max_episode_steps) or 10_000

    def format_observation(self, observation: int) -> str:
        row, column, passenger, destination = map(int, np.unravel_index(observation, (5, 5, 5, 4)))
        goal_row, goal_column = STANDS[destination if passenger == IN_TAXI else passenger]
        goal = "Destination" if passenger == IN_TAXI else "Passenger"
        cells = MAP[row + 1]  # each cell stands between two borders, ':' where one can pass
        walls = {  # in the prompt's order, for which SmolLM2's first answers are the most balanced
            "left": cells[2 * column] != ":",
            "down": row == 4,
            "right": cells[2 * column + 2] != ":",
            "up": row == 0,
        }
        sides = {side: "Wall" if wall else "Free" for side, wall in walls.items()}
        return (
            f"{sides_text(sides, ('Free', 'Wall'))}. "
            f"{goal}: {offset_text(goal_row - row, goal_column - column)}"
        )

    def candidates(self, observation: int, info: Mapping[str, Any]) -> Sequence[str]:
        mask = info.get("action_mask") if self.allowed_only else None
        return self.actions if mask is None else list(compress(self.actions, mask))

    def reference_returns(self) -> dict[str, float]:
        """Exact mean returns within the time limit; none for a fickle passenger, who is not in the
        environment's tables."""
        taxi = self._taxi or TaxiEnv()
        return {} if taxi.fickle_passenger else reference_returns(taxi, self._steps)
