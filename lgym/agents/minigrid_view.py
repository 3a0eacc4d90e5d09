"""MiniGrid's symbols in words, as BabyAI-Text has them (Carta et al. 2023, GLAM, arXiv:2302.02662)."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

# The numbers that MiniGrid has for kinds, colors and states of doors
KINDS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
DOORS = ("open", "closed", "locked")

DIRECTIONS = ("east", "south", "west", "north")

WALL = "a wall"

NOT_SHOWN = ("unseen", "empty", "floor")


class _Thing(NamedTuple):
    name: str
    forward: int
    right: int


def view_text(image: Any) -> str:
    """The things that an agent sees and carries: 'You see a red ball 2 steps right and 1 step forward.'

    The agent looks from the middle of the last row. Of walls only the nearest straight ahead and to each side
    are named; other things all are, the nearest first.

    Args:
        image: kind, color and state of the visible cells, [columns, rows, 3].
    """
    cells = np.asarray(image)
    things = list(_things(cells))
    seen = sorted((thing for thing in things if thing.name != WALL), key=_distance)
    seen += [min(line, key=_distance) for line in _wall_lines(things) if line]
    texts = [f"You see {', '.join(map(_offset, seen))}." if seen else "You see nothing."]
    if carried := _name(*cells[cells.shape[0] // 2, -1].tolist()):
        texts.append(f"You carry {carried}.")
    return " ".join(texts)


def direction_text(direction: Any) -> str:
    """The compass direction that an agent faces."""
    return f"You face {DIRECTIONS[int(direction)]}."


def mission_text(mission: str) -> str:
    """The mission of an episode."""
    return f"Mission: {mission}."


def _things(cells: np.ndarray) -> Iterator[_Thing]:
    columns, rows, _ = cells.shape
    for column in range(columns):
        for row in range(rows):
            forward, right = rows - 1 - row, column - columns // 2
            if (forward, right) != (0, 0) and (name := _name(*cells[column, row].tolist())):
                yield _Thing(name, forward, right)


def _wall_lines(things: list[_Thing]) -> Iterator[list[_Thing]]:
    walls = [thing for thing in things if thing.name == WALL]
    yield [wall for wall in walls if wall.right == 0]
    yield [wall for wall in walls if wall.forward == 0 and wall.right < 0]
    yield [wall for wall in walls if wall.forward == 0 and wall.right > 0]


def _name(kind: int, color: int, state: int) -> str:
    """The name of a cell's content, '' where there is nothing to name."""
    name = KINDS[kind]
    if name in NOT_SHOWN:
        return ""
    if name in ("wall", "lava"):
        return WALL if name == "wall" else name
    words = f"{COLORS[color]} {name}"
    if name == "door":
        words = f"{DOORS[state]} {words}"
    return f"an {words}" if words[0] == "o" else f"a {words}"


def _offset(thing: _Thing) -> str:
    ways = ((thing.right, "right"), (-thing.right, "left"), (thing.forward, "forward"))
    return f"{thing.name} " + " and ".join(
        f"{steps} step{'s' * (steps > 1)} {way}" for steps, way in ways if steps > 0
    )


def _distance(thing: _Thing) -> tuple[int, int, int]:
    return thing.forward + abs(thing.right), thing.forward, thing.right
