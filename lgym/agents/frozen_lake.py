"""Frozen Lake in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv

from lgym.agents.base import TextAgent
from lgym.agents.grid import around, way
from lgym.envs.frozen_lake import STEPS, RandomFrozenLakeEnv, baselines, map_rows
from lgym.types import ConfigError

MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
"""Row and column that each action moves by, in the order of Gymnasium's numbers."""

CELLS = {"S": "Ice", "F": "Ice", "G": "Ice", "H": "Hole"}


class FrozenLakeAgent(TextAgent):
    """Gymnasium's `FrozenLake-v1`, and `lgym/RandomFrozenLake-v0`: what lies to the four sides of where one stands, and how
    far the goal is.

    On slippery ice the lake decides in two of three cases, and the prompt says so. On one map no two fields read alike. On
    random maps the sides alone leave open what lies further off; `show_map` shows it.
    """

    actions = tuple(MOVES)

    def __init__(
        self, map_rows: Sequence[str] | None = None, is_slippery: bool | None = None, show_map: bool = False
    ) -> None:
        """
        Args:
            map_rows: the lake as `data.env_kwargs.desc` has it, a text a row of S, F, H and G; null takes the environment's.
            is_slippery: whether the prompt says that the ice is slippery; null asks the environment.
            show_map: whether an observation ends with the map, X where one stands. Every map then has prompts of its own.
        """
        if map_rows is not None:
            _require_map(map_rows)
        self._given_rows, self._given_slippery, self.show_map = map_rows, is_slippery, show_map
        self._lake: FrozenLakeEnv | RandomFrozenLakeEnv
        self._know(FrozenLakeEnv(desc=list(map_rows or MAPS["4x4"]), is_slippery=bool(is_slippery)), STEPS)

    def bind(self, env: gymnasium.Env) -> None:
        """Takes the map, and whether it is slippery, from a Frozen Lake. Raises `ValueError` for another map than
        `map_rows`, and for one that is drawn without being shown."""
        lake = env.unwrapped
        if not isinstance(lake, FrozenLakeEnv | RandomFrozenLakeEnv):
            return
        drawn = env.spec is not None and all(env.spec.kwargs.get(key) is None for key in ("desc", "map_name"))
        if isinstance(lake, FrozenLakeEnv) and drawn:
            raise ConfigError(
                "FrozenLake-v1 without a desc and a map_name draws a map for each environment, and its observations do not "
                "show it. Take lgym/RandomFrozenLake-v0, whose observations do."
            )
        self._know(lake, (env.spec and env.spec.max_episode_steps) or 10_000)
        if self._given_rows is not None and self.map_rows != tuple(self._given_rows):
            raise ConfigError(
                f"The agent's map_rows are {list(self._given_rows)}, and the lake is {list(self.map_rows)}. Leave map_rows "
                "out: the agent reads the environment's map."
            )

    def _know(self, lake: FrozenLakeEnv | RandomFrozenLakeEnv, steps: int) -> None:
        self._lake, self._steps = lake, steps
        if isinstance(lake, RandomFrozenLakeEnv):
            self.map_rows: tuple[str, ...] = ()
            slippery = lake.is_slippery
        else:
            self.map_rows = tuple(map_rows(lake))
            slippery = any(len(outcomes) > 1 for actions in lake.P.values() for outcomes in actions.values())
        self.is_slippery = slippery if self._given_slippery is None else self._given_slippery

    @property
    def system_prompt(self) -> str:
        slips = " The ice is slippery: you may slide to the side." if self.is_slippery else ""
        return (
            f"Cross the frozen lake to the goal without falling into a hole.{slips} "
            "Answer with one word: left, down, right or up."
        )

    def format_observation(self, observation: int | Mapping[str, Any]) -> str:
        rows: Sequence[str] = self.map_rows
        if isinstance(observation, Mapping):
            rows, place = observation["map"].split("\n"), int(observation["position"])
        else:
            place = int(observation)
        row, column = divmod(place, len(rows[0]))
        sides = {name: _cell(rows, row + down, column + right) for name, (down, right) in MOVES.items()}
        goal_row, goal_column = next((r, text.index("G")) for r, text in enumerate(rows) if "G" in text)
        text = f"{around(sides, ('Ice', 'Hole', 'Wall'))}. Goal: {way(goal_row - row, goal_column - column)}"
        return f"{text}\n{_map(rows, row, column)}" if self.show_map else text

    def baselines(self) -> dict[str, float]:
        """Exact mean returns within the environment's time limit, of random lakes over the first 200."""
        return baselines(self._lake, self._steps)


def _require_map(rows: Sequence[str]) -> None:
    if not rows or any(len(row) != len(rows[0]) or set(row) - set(CELLS) for row in rows) or "G" not in "".join(rows):
        raise ConfigError(f"map_rows is {rows}; it must be rows of equal length of the letters S, F, H and G, with a G.")


def _cell(rows: Sequence[str], row: int, column: int) -> str:
    inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
    return CELLS[rows[row][column]] if inside else "Wall"


def _map(rows: Sequence[str], row: int, column: int) -> str:
    shown = [list(text) for text in rows]
    shown[row][column] = "X"
    return "\n".join(" ".join(cells) for cells in shown)
