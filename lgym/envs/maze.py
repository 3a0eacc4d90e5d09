"""The maze of LMRL-Gym (Abdulhai et al. 2023, arXiv:2311.18232), after its description, and exact values.

A cell's number is its row times `COLUMNS` plus its column. Arrays of [25] follow `START_CELLS`, and arrays of
[4] the actions left, right, up and down.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from lgym.envs import tabular
from lgym.types import ConfigError

STEPS = 100  # the time limit that the maze is registered with

MAP = (
    "#############",
    "#     #     #",
    "### ##### ###",
    "### ##### ###",
    "### ##### ###",
    "###       ###",
    "###### ######",
    "###### ######",
    "######G######",
    "#############",
)
COLUMNS = len(MAP[0])
_CELLS = "".join(MAP)
GOAL = _CELLS.index("G")
START_CELLS = tuple(cell for cell, kind in enumerate(_CELLS) if kind == " ")
"""The open cells without the goal."""

_OFFSETS = (-1, 1, -COLUMNS, COLUMNS)  # of each action


class MazeEnv(gymnasium.Env):
    """A double T of corridors: from any open cell to the goal at the end of its stem.

    The actions 0 to 3 move left, right, up and down; into a wall one stays. The move that reaches the goal
    ends the episode and pays 0, every other pays -1. An episode starts in any of the 25 open cells but the
    goal, equally likely, or in `reset(options={"position": cell})`.

    Args:
        fully_observed: whether the observation is the number of the cell, row * 13 + column; if not, it is
            whether there is a wall to the left, right, up and down, which many cells have in common.
        render_mode: ansi, a text with X at the position, or null.
    """

    metadata = {"render_modes": ["ansi"]}

    def __init__(self, fully_observed: bool = True, render_mode: str | None = None) -> None:
        self.fully_observed = fully_observed
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Discrete(4)
        self.observation_space: gymnasium.Space[Any] = (
            gymnasium.spaces.Discrete(len(_CELLS)) if fully_observed else gymnasium.spaces.MultiBinary(4)
        )
        self.P = {
            cell: {action: [_outcome(cell, action)] for action in range(4)} for cell in range(len(_CELLS))
        }
        self.initial_state_distrib = np.isin(np.arange(len(_CELLS)), START_CELLS) / len(START_CELLS)
        self.position = START_CELLS[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int | np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = int((options or {}).get("position", self.np_random.choice(START_CELLS)))
        if self.position not in START_CELLS:
            raise ConfigError(
                f"position {self.position} is no cell to start in: choose one of {START_CELLS}."
            )
        return self._observation(), {}

    def step(self, action: int) -> tuple[int | np.ndarray, float, bool, bool, dict[str, Any]]:
        ((_, self.position, reward, terminated),) = self.P[self.position][int(action)]
        return self._observation(), reward, terminated, False, {}

    def render(self) -> str | None:
        if self.render_mode is None:
            return None
        cells = _CELLS[: self.position] + "X" + _CELLS[self.position + 1 :]
        return "\n".join(cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS))

    def _observation(self) -> int | np.ndarray:
        return self.position if self.fully_observed else np.array(walls(self.position), dtype=np.int8)


gymnasium.register("lgym/Maze-v0", "lgym.envs.maze:MazeEnv", max_episode_steps=STEPS)


def walls(cell: int) -> tuple[bool, ...]:
    """Walls to the left, right, up and down of an open cell."""
    return tuple(_CELLS[cell + offset] == "#" for offset in _OFFSETS)


def policy_value(probabilities: ArrayLike, steps: int = STEPS) -> float:
    """Mean return of a policy in at most `steps` steps of the fully observed maze.

    Args:
        probabilities: of each action, [25, 4].
        steps: the time limit.
    """
    policy = np.full((len(_CELLS), 4), 0.25)
    policy[list(START_CELLS)] = _checked(probabilities)
    return tabular.policy_value(tabular.tables(MazeEnv()), policy, steps)


def optimal_moves() -> np.ndarray:
    """Mask of the moves on a shortest way to the goal, [25, 4] of bool."""
    q = tabular.optimal_action_values(tabular.tables(MazeEnv()), STEPS)[list(START_CELLS)]
    return q == q.max(axis=1, keepdims=True)  # sums of -1 are exact


def is_optimal(probabilities: ArrayLike) -> np.ndarray:
    """Mask of the cells in which the likeliest move is an optimal one, [25] of bool.

    Args:
        probabilities: of each action, [25, 4].
    """
    likeliest = _checked(probabilities).argmax(axis=1)
    return optimal_moves()[np.arange(len(START_CELLS)), likeliest]


def reference_returns(env: MazeEnv, steps: int = STEPS) -> dict[str, float]:
    """Mean returns, in at most `steps` steps, of any action and of the best.

    The best in the partly observed maze is that of a player who knows the maze and remembers everything.
    """
    returns = tabular.reference_returns(env, steps)
    if not env.fully_observed:
        returns["optimal"] = tabular.optimal_value(belief_tables(), steps)
    return returns


def belief_tables() -> tabular.Tables:
    """Build the tables of the partly observed maze, whose states are beliefs: the cells where one may be.

    Cells that look alike either all move or all stay, and so never meet: those of a belief stay equally
    likely. A belief is therefore all that memory can know.
    """
    beliefs = _split(START_CELLS)
    start = np.array([len(belief) for belief in beliefs]) / len(START_CELLS)
    number = {belief: index for index, belief in enumerate(beliefs)}
    outcomes: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = {}
    for belief in beliefs:  # grows by every belief that is met
        outcomes[number[belief]] = {action: [] for action in range(4)}
        for action, results in outcomes[number[belief]].items():
            cells = [_outcome(cell, action)[1] for cell in belief]
            for after in _split(cell for cell in cells if cell != GOAL):  # the goal pays 0 and ends
                if after not in number:
                    number[after] = len(beliefs)
                    beliefs.append(after)
                results.append((len(after) / len(belief), number[after], -1.0, False))
    start = np.pad(start, (0, len(beliefs) - len(start)))
    return tabular.tables(SimpleNamespace(P=outcomes, initial_state_distrib=start))


def _outcome(cell: int, action: int) -> tuple[float, int, float, bool]:
    """Probability 1, the next cell, the reward and whether the episode ends; walls and the goal lead
    nowhere."""
    if cell == GOAL:
        return 1.0, cell, 0.0, True
    next_cell = cell + _OFFSETS[action] if cell in START_CELLS and not walls(cell)[action] else cell
    return 1.0, next_cell, 0.0 if next_cell == GOAL else -1.0, next_cell == GOAL


def _split(cells: Iterable[int]) -> list[frozenset[int]]:
    """Cells that look alike, together."""
    alike: dict[tuple[bool, ...], set[int]] = {}
    for cell in cells:
        alike.setdefault(walls(cell), set()).add(cell)
    return [frozenset(group) for group in alike.values()]


def _checked(probabilities: ArrayLike) -> np.ndarray:
    """The probabilities of each action, [25, 4]. Raises `ValueError` unless they are some."""
    policy = np.asarray(probabilities, dtype=float)
    if policy.shape != (len(START_CELLS), 4):
        raise ValueError(f"expected 4 probabilities for each of the 25 cells, not of shape {policy.shape}")
    if (policy < 0).any() or not np.allclose(policy.sum(axis=1), 1, atol=1e-4):
        raise ValueError("the probabilities of each cell's 4 actions must add up to 1")
    return policy
