"""Taxi in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.taxi import TaxiEnv

from lgym.agents.base import TextAgent
from lgym.agents.grid import around, way
from lgym.envs.taxi import reference_returns

STANDS = ((0, 0), (0, 4), (4, 0), (4, 3))
"""Row and column of the red, green, yellow and blue stand."""

ABOARD = 4

WALLS = {(row, column) for column, rows in ((0, (3, 4)), (1, (0, 1)), (2, (3, 4))) for row in rows}
"""Row and column of the fields with a wall to their right, inside the 5x5 grid."""


class TaxiAgent(TextAgent):
    """Gymnasium's `Taxi-v4`: where to go next, as so many fields down or up and right or left, and which sides are walls.

    Until the passenger is aboard that is the passenger, and the destination is left out: it says nothing about what to do
    yet. So the 400 states read as 196 texts, and where two read alike the same actions are best.
    """

    system_prompt = (
        "You drive a taxi. Drive to the passenger, pick the passenger up, drive to the destination and drop the passenger "
        "there. You cannot drive through walls. Answer with one word: left, down, right, up, pick or drop."
    )
    actions = ("down", "up", "right", "left", "pick", "drop")  # in the order of Gymnasium's numbers

    def __init__(self, allowed_only: bool = True) -> None:
        """
        Args:
            allowed_only: leave out the candidates that change nothing, as the environment's `info["action_mask"]` says:
                driving into walls, picking up where nobody waits, dropping away from the four stands.
        """
        self.allowed_only = allowed_only
        self._kind: dict[str, Any] | None = {}

    def bind(self, env: gymnasium.Env) -> None:
        """Remembers what the baselines depend on."""
        taxi = env.unwrapped
        if isinstance(taxi, TaxiEnv):
            steps = (env.spec and env.spec.max_episode_steps) or 10_000
            rainy = len(taxi.P[0][0]) > 1
            kind = {"is_rainy": rainy, "rainy_probability": taxi.rainy_probability, "steps": steps}
            self._kind = None if taxi.fickle_passenger else kind

    def format_observation(self, observation: int) -> str:
        place, destination = divmod(int(observation), 4)
        place, passenger = divmod(place, 5)
        row, column = divmod(place, 5)
        goal_row, goal_column = STANDS[destination if passenger == ABOARD else passenger]
        goal = "Destination" if passenger == ABOARD else "Passenger"
        return f"{around(_sides(row, column), ('Free', 'Wall'))}. {goal}: {way(goal_row - row, goal_column - column)}"

    def candidates(self, observation: int, info: Mapping[str, Any]) -> Sequence[str]:
        mask = info.get("action_mask") if self.allowed_only else None
        return self.actions if mask is None else [name for name, may in zip(self.actions, mask, strict=True) if may]

    def reference_returns(self) -> dict[str, float]:
        """Exact mean returns within the environment's time limit; none for a fickle passenger, who is not in its tables."""
        return {} if self._kind is None else dict(reference_returns(**self._kind))


def _sides(row: int, column: int) -> dict[str, str]:
    """In the order of the prompt's answers, for which SmolLM2's first answers are the most balanced."""
    walls = {
        "left": column == 0 or (row, column - 1) in WALLS,
        "down": row == 4,
        "right": column == 4 or (row, column) in WALLS,
        "up": row == 0,
    }
    return {side: "Wall" if wall else "Free" for side, wall in walls.items()}
