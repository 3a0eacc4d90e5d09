"""An agent for Sokoban."""

from typing import Any

import gymnasium
import numpy as np

from lgym.agents.base import TextAgent
from lgym.agents.grid import offset_text, sides_text
from lgym.envs.sokoban import (
    BOX,
    BOX_ON_TARGET,
    MOVES,
    PLAYER,
    PLAYER_ON_TARGET,
    SYMBOLS,
    TARGET,
    WALL,
    Cell,
    SokobanEnv,
    optimal_return,
)

KINDS = ("Free", "Wall", "Box")


class SokobanAgent(TextAgent):
    """`lgym/Sokoban-v0`: the neighboring cells, and of each box that is off a target where it is, how far the
    nearest free target is from it, and its sides that a wall or a box blocks.

    Two levels may read alike: what lies further off is not said. `show_map` shows it.

    Args:
        show_map: whether an observation ends with the map: # a wall, X a box, O a target, * a box on one, P
            the player, S the player on a target.
    """

    system_prompt = (
        "Push the box onto the target. You push it from the opposite side, and never pull. "
        "Answer with one word: up, down, left or right."
    )
    actions = ("up", "down", "left", "right")  # in the order of the environment's numbers

    def __init__(self, show_map: bool = False) -> None:
        self.show_map = show_map
        self._env = SokobanEnv()

    def bind(self, env: gymnasium.Env) -> None:
        """Read which levels are played, for the reference return."""
        if isinstance(env.unwrapped, SokobanEnv):
            self._env = env.unwrapped

    def format_observation(self, observation: Any) -> str:
        cells = np.asarray(observation)
        (player,) = _places(cells, PLAYER, PLAYER_ON_TARGET)
        boxes, targets = _places(cells, BOX), _places(cells, TARGET, PLAYER_ON_TARGET)
        parts = [sides_text(_sides(cells, player), KINDS)]
        for box in sorted(boxes, key=lambda box: _distance(player, box)):
            target = min(targets, key=lambda target: _distance(box, target))
            blocked = [side for side, kind in _sides(cells, box).items() if kind != "Free"]
            parts.append(
                f"Box: {_offset(player, box)}, blocked {', '.join(blocked) or 'nowhere'}. "
                f"It has to go {_offset(box, target)}"
            )
        text = f"{'. '.join(parts)}."
        return f"{text}\n{_map_text(cells)}" if self.show_map else text

    def reference_returns(self) -> dict[str, float]:
        """The mean return of the shortest solutions, over the first 200 levels."""
        return {"optimal": optimal_return(self._env)}


def _places(cells: np.ndarray, *kinds: int) -> list[Cell]:
    return [(int(row), int(column)) for row, column in np.argwhere(np.isin(cells, kinds))]


def _sides(cells: np.ndarray, place: Cell) -> dict[str, str]:
    """The kind of each neighboring cell of a place; the player counts as free."""
    row, column = place
    kinds = {WALL: "Wall", BOX: "Box", BOX_ON_TARGET: "Box"}
    return {
        side: kinds.get(int(cells[row + down, column + right]), "Free")
        for side, (down, right) in zip(SokobanAgent.actions, MOVES, strict=True)
    }


def _distance(start: Cell, end: Cell) -> tuple[int, Cell]:
    return abs(end[0] - start[0]) + abs(end[1] - start[1]), end


def _offset(start: Cell, end: Cell) -> str:
    return offset_text(end[0] - start[0], end[1] - start[1])


def _map_text(cells: np.ndarray) -> str:
    return "\n".join(" ".join(SYMBOLS[kind] for kind in row) for row in cells)
