"""An agent for Frozen Lake."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv

from lgym.agents.base import TextAgent
from lgym.agents.grid import offset_text, sides_text
from lgym.envs.frozen_lake import STEPS, RandomFrozenLakeEnv, map_rows, reference_returns
from lgym.types import ConfigError

# Row and column offset of each action, in the order of Gymnasium's numbers
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}

CELLS = {"S": "Ice", "F": "Ice", "G": "Ice", "H": "Hole"}


class FrozenLakeAgent(TextAgent):
    """Gymnasium's `FrozenLake-v1`, and `lgym/RandomFrozenLake-v0`: the four neighboring cells and the goal's
    offset.

    On slippery ice the lake decides in two of three cases, and the prompt says so. On one map no two cells
    read alike. On random maps the sides alone leave open what lies further off; `show_map` shows it.

    Args:
        map_rows: the lake as `data.env_kwargs.desc` has it, one text of S, F, H and G per row; null takes the
            environment's.
        is_slippery: whether the prompt says that the ice is slippery; null asks the environment.
        show_map: whether an observation ends with the map, X at the agent's position. Every map then has
            prompts of its own.
    """

    actions = tuple(MOVES)

    def __init__(
        self, map_rows: Sequence[str] | None = None, is_slippery: bool | None = None, show_map: bool = False
    ) -> None:
        if map_rows is not None and not _is_map(map_rows):
            raise ConfigError(
                f"map_rows is {map_rows}; it must be rows of equal length of the letters S, F, H and G, with "
                "a G."
            )
        self.show_map = show_map
        self._given_rows = map_rows
        self._given_slippery = is_slippery
        self._read_lake(
            FrozenLakeEnv(desc=list(map_rows or MAPS["4x4"]), is_slippery=bool(is_slippery)), STEPS
        )

    def bind(self, env: gymnasium.Env) -> None:
        """Read the map, and whether it is slippery, from a Frozen Lake.

        Raises:
            ValueError: for another map than `map_rows`, and for one that is drawn without being shown.
        """
        lake = env.unwrapped
        if not isinstance(lake, FrozenLakeEnv | RandomFrozenLakeEnv):
            return
        is_drawn = env.spec is not None and all(
            env.spec.kwargs.get(key) is None for key in ("desc", "map_name")
        )
        if isinstance(lake, FrozenLakeEnv) and is_drawn:
            raise ConfigError(
                "FrozenLake-v1 without a desc and a map_name draws a map for each environment, and its "
                "observations do not show it. Take lgym/RandomFrozenLake-v0, whose observations do."
            )
        self._read_lake(lake, (env.spec and env.spec.max_episode_steps) or 10_000)
        if self._given_rows is not None and self.map_rows != tuple(self._given_rows):
            raise ConfigError(
                f"The agent's map_rows are {list(self._given_rows)}, and the lake is {list(self.map_rows)}. "
                "Leave map_rows out: the agent reads the environment's map."
            )

    def _read_lake(self, lake: FrozenLakeEnv | RandomFrozenLakeEnv, steps: int) -> None:
        self._lake = lake
        self._steps = steps
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
        if isinstance(observation, Mapping):
            rows, position = tuple(observation["map"].split("\n")), observation["position"]
        else:
            rows, position = self.map_rows, observation
        row, column = divmod(int(position), len(rows[0]))
        sides = {name: _cell(rows, row + down, column + right) for name, (down, right) in MOVES.items()}
        goal_row, goal_column = next((r, text.index("G")) for r, text in enumerate(rows) if "G" in text)
        goal = offset_text(goal_row - row, goal_column - column)
        text = f"{sides_text(sides, ('Ice', 'Hole', 'Wall'))}. Goal: {goal}"
        return f"{text}\n{_map_text(rows, row, column)}" if self.show_map else text

    def reference_returns(self) -> dict[str, float]:
        """Exact mean returns within the environment's time limit, of random lakes over the first 200."""
        return reference_returns(self._lake, self._steps)


def _is_map(rows: Sequence[str]) -> bool:
    return (
        bool(rows)
        and "G" in "".join(rows)
        and all(len(row) == len(rows[0]) and set(row) <= set(CELLS) for row in rows)
    )


def _cell(rows: Sequence[str], row: int, column: int) -> str:
    is_inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
    return CELLS[rows[row][column]] if is_inside else "Wall"


def _map_text(rows: Sequence[str], row: int, column: int) -> str:
    cells = [list(text) for text in rows]
    cells[row][column] = "X"
    return "\n".join(map(" ".join, cells))
