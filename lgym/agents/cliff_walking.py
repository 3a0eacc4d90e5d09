"""An agent for CliffWalking."""

from typing import Any

import gymnasium
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv

from lgym.agents.base import TextAgent
from lgym.agents.grid import offset_text, sides_text
from lgym.envs.tabular import reference_returns

# Row and column offset of each action, in the order of Gymnasium's numbers
MOVES = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


class CliffWalkingAgent(TextAgent):
    """Gymnasium's `CliffWalking-v1`: row and column, the kinds of the cells around, and the goal's offset."""

    system_prompt = (
        "Walk to the goal in few steps. Every step costs 1; off the cliff costs 100, and you start again. "
        "Answer with one word: up, right, down or left."
    )
    actions = tuple(MOVES)

    def __init__(self) -> None:
        self._walk = CliffWalkingEnv()
        self._steps = 10_000  # the environment has no time limit of its own

    def bind(self, env: gymnasium.Env) -> None:
        """Read the tables and the time limit that the reference returns depend on."""
        if isinstance(env.unwrapped, CliffWalkingEnv):
            self._walk = env.unwrapped
            self._steps = (env.spec and env.spec.max_episode_steps) or 10_000

    def format_observation(self, observation: Any) -> str:
        rows, columns = self._walk.shape
        row, column = divmod(int(observation), columns)
        sides = {name: self._kind(row + down, column + right) for name, (down, right) in MOVES.items()}
        goal = offset_text(rows - 1 - row, columns - 1 - column)
        around = sides_text(sides, ("Free", "Cliff", "Wall"))
        return f"Row {row}, column {column}. {around}. Goal: {goal}"

    def _kind(self, row: int, column: int) -> str:
        rows, columns = self._walk.shape
        if not (0 <= row < rows and 0 <= column < columns):
            return "Wall"
        return "Cliff" if self._walk._cliff[row, column] else "Free"

    def reference_returns(self) -> dict[str, float]:
        """Exact mean returns within the time limit, 10,000 steps where there is none."""
        return reference_returns(self._walk, self._steps)
