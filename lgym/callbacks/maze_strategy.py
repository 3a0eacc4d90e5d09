"""Exact value and picture of a policy for the maze."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from lgym.callbacks.exact_evaluation import ExactEvaluation
from lgym.data import RolloutDataModule
from lgym.envs import maze
from lgym.envs.maze_chart import policy_chart
from lgym.types import ConfigError


@dataclass(eq=False)
class MazeStrategy(ExactEvaluation):
    """Evaluates the policy in all 25 cells of the fully observed maze: its exact value by dynamic
    programming, its agreement with optimal play and, as a picture, its likeliest moves. If it does so in
    every rollout, the episodes are played by the same answers.

    Args:
        every_n_rollouts: interval at which the exact value is computed while training.
        chart_every_n_rollouts: interval at which the picture is drawn.
    """

    num_actions = 4

    def check_env(self, data: RolloutDataModule) -> None:
        env_kwargs = data.env_kwargs or {}
        if not data.env.startswith("lgym/Maze-") or not env_kwargs.get("fully_observed", True):
            raise ConfigError(
                "MazeStrategy knows the fully observed lgym/Maze-v0, and the environment is "
                f"{data.env} with {env_kwargs}. Take the callback out of trainer.callbacks."
            )
        if data.frame_skip != 1 or data.max_episode_steps == -1:
            raise ConfigError(
                "MazeStrategy needs a time limit and no frame skip: leave out data.frame_skip, and "
                "data.max_episode_steps=-1."
            )
        self._steps = data.max_episode_steps or maze.STEPS

    def observations(self) -> tuple[int, ...]:
        return maze.START_CELLS

    def metrics(self, probabilities: np.ndarray) -> dict[str, float]:
        greedy = np.eye(4)[probabilities.argmax(axis=1)]
        return {
            "maze/value_sampled": maze.policy_value(probabilities, self._steps),
            "maze/value_greedy": maze.policy_value(greedy, self._steps),
            "maze/agreement": float(maze.is_optimal(probabilities).mean()),
        }

    def chart(self, probabilities: np.ndarray, title: str) -> Figure:
        return policy_chart(probabilities, title=title, steps=self._steps)
