"""An agent for the maze."""

from typing import Any

import gymnasium
import numpy as np

from lgym.agents.base import TextAgent
from lgym.envs import maze


class MazeAgent(TextAgent):
    """`lgym/Maze-v0`: the position, the goal and the walls around; of the partly observed maze the walls
    alone."""

    system_prompt = (
        "You walk through a maze. Reach the goal in few moves: every move costs 1, also one into a wall. "
        "Answer with one word: left, right, up or down."
    )
    actions = ("left", "right", "up", "down")  # in the order of the environment's numbers

    def __init__(self) -> None:
        self._maze = maze.MazeEnv()
        self._steps = maze.STEPS

    def bind(self, env: gymnasium.Env) -> None:
        """Read what is observed and the time limit, which the reference returns depend on."""
        if isinstance(env.unwrapped, maze.MazeEnv):
            self._maze = env.unwrapped
            self._steps = (env.spec and env.spec.max_episode_steps) or 10_000

    def format_observation(self, observation: Any) -> str:
        if np.ndim(observation) == 1:
            return self._walls(observation)
        cell = int(observation)
        return (  # the goal first: what all prompts begin with is computed once
            f"The goal is at {_place(maze.GOAL)}. You are at {_place(cell)}. {self._walls(maze.walls(cell))}"
        )

    def _walls(self, walls: Any) -> str:
        sides = [side for side, is_wall in zip(self.actions, walls, strict=True) if is_wall]
        return f"Walls: {', '.join(sides) or 'none'}."

    def reference_returns(self) -> dict[str, float]:
        """Exact mean returns within the time limit, 10,000 steps where there is none; the optimal one of the
        partly observed maze is that of a perfect memory."""
        return maze.reference_returns(self._maze, self._steps)


def _place(cell: int) -> str:
    row, column = divmod(cell, maze.COLUMNS)
    return f"row {row}, column {column}"
