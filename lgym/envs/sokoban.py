"""Sokoban: push every box onto a target. Levels are drawn by number, and every one can be solved."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from lgym.types import ConfigError

STEPS = 100  # the time limit that it is registered with

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
"""The kinds of cells of an observation, the first six with gym-sokoban's numbers."""

SYMBOLS = "#_O*XPS"
"""The letters of the kinds, as `render` shows them."""

Cell = tuple[int, int]
"""Row and column."""

MOVES: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Offsets of the actions up, down, left and right."""

REFERENCE_LEVELS = 200  # the number of first levels over which the best return is a mean

ATTEMPTS = 10_000  # draws after which settings are found to have no level

STEP_REWARD, BOX_REWARD, WIN_REWARD = -0.1, 1.0, 10.0
"""For every move; for a box onto a target, and lost with one that leaves it; for the last box."""


class Level(NamedTuple):
    """The places of all things.

    Attributes:
        floor: the cells that are no wall, targets among them.
        targets: as many as boxes.
        boxes: where they are.
        player: where the player is.
    """

    floor: frozenset[Cell]
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    def moved(self, action: int) -> "Level":
        """The level after an action; the same where a wall, or a second box, is in the way."""
        down, right = MOVES[action]
        there = self.player[0] + down, self.player[1] + right
        behind = there[0] + down, there[1] + right
        if there not in self.floor:
            return self
        if there not in self.boxes:
            return self._replace(player=there)
        if behind not in self.floor or behind in self.boxes:
            return self
        return self._replace(boxes=self.boxes - {there} | {behind}, player=there)

    @property
    def is_solved(self) -> bool:
        """True if every box is on a target."""
        return self.boxes == self.targets


def solution(level: Level) -> list[int] | None:
    """The actions of a shortest way to solve a level, by breadth-first search; `None` if there is none."""
    ways: dict[Level, tuple[Level, int] | None] = {level: None}
    frontier = deque([level])
    while frontier:
        current = frontier.popleft()
        if current.is_solved:
            return list(_actions_to(current, ways))[::-1]
        for action in range(len(MOVES)):
            following = current.moved(action)
            if following not in ways:
                ways[following] = current, action
                frontier.append(following)
    return None


def _actions_to(level: Level, ways: dict[Level, tuple[Level, int] | None]) -> Iterator[int]:
    while (way := ways[level]) is not None:
        level, action = way
        yield action


def made_level(number: int, size: int, boxes: int, walls: float, least_moves: int) -> Level:
    """The level of a number: drawn until it can be solved, in `least_moves` moves or more.

    Raises:
        ConfigError: where `ATTEMPTS` draws give none.
    """
    rng = np.random.default_rng(number)
    inner = [(row, column) for row in range(1, size - 1) for column in range(1, size - 1)]
    for _ in range(ATTEMPTS):
        floor = [cell for cell in inner if rng.random() >= walls]
        if len(floor) <= 2 * boxes:
            continue
        places = [floor[index] for index in rng.permutation(len(floor))]
        level = Level(
            frozenset(floor), frozenset(places[:boxes]), frozenset(places[boxes : 2 * boxes]), places[-1]
        )
        way = solution(level)
        if way is not None and len(way) >= least_moves:
            return level
    raise ConfigError(
        f"No level of size {size} with {boxes} boxes, {walls:g} of its cells walls and {least_moves} moves "
        f"or more was found in {ATTEMPTS:,} draws: give a larger size, fewer boxes or fewer moves."
    )


def optimal_return(env: "SokobanEnv") -> float:
    """Mean return of the shortest solutions of an environment's first `REFERENCE_LEVELS` levels."""
    numbers = range(env.first_level, env.first_level + min(env.levels, REFERENCE_LEVELS))
    moves = [len(solution(env.made_level(number)) or ()) for number in numbers]
    return float(WIN_REWARD + BOX_REWARD * env.boxes + STEP_REWARD * np.mean(moves))


class SokobanEnv(gymnasium.Env[np.ndarray, Any]):
    """Sokoban in a room whose level is drawn anew at each reset.

    The actions 0 to 3 move up, down, left and right, and push a box that stands there. Rewards are those of
    gym-sokoban (Schrader 2018): -0.1 for every move, 1 for a box onto a target, -1 for one off it, 10 for the
    last one, with which the episode ends. `info["success"]` says whether the level is solved.

    The level follows from the reset seed. Each has a number: `first_level: 0, levels: 1000` to train on and
    `first_level: 1000, levels: 100` to evaluate on have no number in common.

    Args:
        size: rows and columns of the room with its outer walls, 4 or more.
        boxes: of a level, and targets; a level is searched through to know that it can be solved, which takes
            long with more than two.
        walls: share of the inner cells that are walls, below 1.
        least_moves: moves of the shortest solution, at least.
        first_level: the number of the first level, 0 or more.
        levels: the number of levels, from the first one on.
        render_mode: ansi, or null.
    """

    metadata = {"render_modes": ["ansi"]}

    def __init__(
        self,
        size: int = 6,
        boxes: int = 1,
        walls: float = 0.2,
        least_moves: int = 2,
        first_level: int = 0,
        levels: int = 2**31,
        render_mode: str | None = None,
    ) -> None:
        if size < 4 or boxes < 1 or not 0 <= walls < 1 or first_level < 0 or levels < 1:
            raise ConfigError(
                f"size={size}, boxes={boxes}, walls={walls}, first_level={first_level}, levels={levels}: "
                "give a size of 4 or more, 0 <= walls < 1, a first level of 0 or more, and at least one box "
                "and level."
            )
        self.size = size
        self.boxes = boxes
        self.walls = walls
        self.least_moves = least_moves
        self.first_level = first_level
        self.levels = levels
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))
        self.observation_space = gymnasium.spaces.Box(0, len(SYMBOLS) - 1, (size, size), np.int8)
        self.level = self.made_level(first_level)

    def made_level(self, number: int) -> Level:
        """The level of a number."""
        return made_level(number, self.size, self.boxes, self.walls, self.least_moves)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.level = self.made_level(self.first_level + int(self.np_random.integers(self.levels)))
        return self._observation(), {"success": False}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        before, self.level = self.level, self.level.moved(int(action))
        gained = len(self.level.boxes & self.level.targets) - len(before.boxes & before.targets)
        won = self.level.is_solved
        reward = STEP_REWARD + BOX_REWARD * gained + WIN_REWARD * won
        return self._observation(), reward, won, False, {"success": won}

    def render(self) -> str | None:
        if self.render_mode is None:
            return None
        return "\n".join("".join(SYMBOLS[kind] for kind in row) for row in self._observation())

    def _observation(self) -> np.ndarray:
        cells = np.full((self.size, self.size), WALL, dtype=np.int8)
        level = self.level
        for places, kind in (
            (level.floor, FLOOR),
            (level.targets, TARGET),
            (level.boxes, BOX),
            (level.boxes & level.targets, BOX_ON_TARGET),
            ({level.player}, PLAYER_ON_TARGET if level.player in level.targets else PLAYER),
        ):
            for place in places:
                cells[place] = kind
        return cells


gymnasium.register("lgym/Sokoban-v0", "lgym.envs.sokoban:SokobanEnv", max_episode_steps=STEPS)
