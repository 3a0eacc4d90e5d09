"""The maze: how it moves and what one sees, and its exact values against others of this file's own."""

from __future__ import annotations

from collections import deque
from functools import cache

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from lgym.envs import make_env, maze
from lgym.envs.maze import GOAL, START_CELLS, MazeEnv, reference_returns

CORRIDORS = {  # row: open columns, as the paper's text describes the double T
    1: [*range(1, 6), *range(7, 12)],
    **dict.fromkeys((2, 3, 4), [3, 9]),
    5: range(3, 10),
    **dict.fromkeys((6, 7, 8), [6]),
}
OPEN = {row * 13 + column for row, columns in CORRIDORS.items() for column in columns}
LEFT, RIGHT, UP, DOWN = range(4)
STEP = {LEFT: -1, RIGHT: 1, UP: -13, DOWN: 13}


def after(cell, action):
    return cell + STEP[action] if cell + STEP[action] in OPEN else cell


def distances():
    """The fewest moves to the goal, by a search from there."""
    found, queue = {GOAL: 0}, deque([GOAL])
    while queue:
        cell = queue.popleft()
        for action in STEP:
            if (other := after(cell, action)) not in found:
                found[other] = found[cell] + 1
                queue.append(other)
    return found


def test_the_open_cells():
    assert set(START_CELLS) == OPEN - {GOAL}
    assert len(START_CELLS) == 25
    assert divmod(GOAL, 13) == (8, 6)


def test_every_move():
    """From each cell in each direction: a wall stops, the goal ends, and every other move costs 1."""
    env = MazeEnv()
    for cell in START_CELLS:
        for action in STEP:
            env.reset(options={"position": cell})
            expected = after(cell, action)
            is_goal = expected == GOAL
            assert env.step(action) == (expected, 0.0 if is_goal else -1.0, is_goal, False, {})


def test_walls_are_seen_in_the_order_of_the_actions():
    env = MazeEnv(fully_observed=False)
    for cell in START_CELLS:
        observation, _ = env.reset(options={"position": cell})
        assert observation.tolist() == [int(after(cell, action) == cell) for action in STEP]
    observation, _ = env.reset(options={"position": 14})
    assert observation.tolist() == [1, 0, 1, 1]  # the left end of row 1
    assert env.observation_space.contains(observation)


def test_starts_are_uniform_and_follow_from_the_seed():
    """400 expected of each, with a standard deviation of sqrt(10,000 * 0.04 * 0.96) = 19.6."""
    env = MazeEnv()
    starts = [env.reset(seed=0)[0], *(env.reset()[0] for _ in range(9_999))]
    counts = np.bincount(starts, minlength=130)
    assert (np.abs(counts[list(START_CELLS)] - 400) < 5 * 19.6).all()
    assert counts.sum() == counts[list(START_CELLS)].sum()
    np.testing.assert_allclose(env.initial_state_distrib * 10_000, np.where(counts > 0, 400, 0))
    assert [env.reset(seed=seed)[0] for seed in range(20)] == [
        MazeEnv().reset(seed=seed)[0] for seed in range(20)
    ]


@pytest.mark.parametrize("position", [GOAL, 0, 500])
def test_a_start_in_a_wall_or_the_goal_is_refused(position):
    with pytest.raises(ValueError, match=f"position {position} "):
        MazeEnv().reset(options={"position": position})


def test_an_episode_ends_after_100_steps():
    env = make_env("lgym/Maze-v0")
    env.reset(options={"position": 14})
    steps = [env.step(LEFT)[3] for _ in range(100)]
    assert steps == [False] * 99 + [True]


@pytest.mark.parametrize("fully_observed", [True, False])
def test_gymnasiums_own_checks(fully_observed, recwarn):
    check_env(make_env("lgym/Maze-v0", {"fully_observed": fully_observed, "render_mode": "ansi"}).unwrapped)
    assert not [warning for warning in recwarn if "lgym" in str(warning.filename)]


def test_rendering():
    env = MazeEnv(render_mode="ansi")
    env.reset(options={"position": 14})
    rows = env.render().split("\n")
    assert rows[1] == "#X    #     #"
    assert rows[8] == "######G######"
    assert len(rows) == 10
    assert MazeEnv().render() is None


def test_the_optimal_return_is_that_of_the_shortest_ways():
    """-6.84: of the moves to the goal all but the last cost 1."""
    expected = -np.mean([distances()[cell] - 1 for cell in START_CELLS])
    assert expected == pytest.approx(-6.84)
    assert reference_returns(MazeEnv())["optimal"] == pytest.approx(expected)
    assert reference_returns(MazeEnv(), 1)["optimal"] == pytest.approx(
        -24 / 25
    )  # one cell is beside the goal


def test_the_random_return():
    """The probability, after each step, that the goal is not reached, summed; and random play itself. (LMRL-Gym
    reports -85.9.)"""
    step = np.zeros((130, 130))
    for cell in START_CELLS:
        for action in STEP:
            step[cell, after(cell, action)] += 0.25
    position, expected = np.isin(np.arange(130), START_CELLS) / 25, 0.0
    for _ in range(100):
        position = position @ step  # the goal leads nowhere
        expected -= position.sum() - position[GOAL]
    assert expected == pytest.approx(-85.1395810)
    for fully_observed in (True, False):
        assert reference_returns(MazeEnv(fully_observed))["random"] == pytest.approx(expected)
    returns = [random_return(seed) for seed in range(400)]
    assert abs(np.mean(returns) - expected) < 4 * np.std(returns) / 20


def random_return(seed):
    env, rng = make_env("lgym/Maze-v0"), np.random.default_rng(seed)
    env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        _, reward, terminated, truncated, _ = env.step(rng.integers(4))
        total, over = total + reward, terminated or truncated
    return total


def alike(cells):
    """Groups of cells with the same walls; a cell that is there twice stays so."""
    groups = {}
    for cell in cells:
        groups.setdefault(tuple(after(cell, action) == cell for action in STEP), []).append(cell)
    return [tuple(sorted(group)) for group in groups.values()]


@cache
def best(cells, steps):
    """The highest sum of returns from cells that cannot be told apart, and the action for it."""
    if steps == 0:
        return 0.0, LEFT
    sums = {}
    for action in STEP:
        moved = [other for cell in cells if (other := after(cell, action)) != GOAL]
        sums[action] = sum(best(group, steps - 1)[0] for group in alike(moved)) - len(moved)
    return max(sums.values()), max(sums, key=sums.get)


@pytest.mark.parametrize("steps", [1, 5, 10, 15, 100])
def test_the_optimal_return_with_a_memory(steps):
    expected = sum(best(group, steps)[0] for group in alike(START_CELLS)) / 25
    assert reference_returns(MazeEnv(False), steps)["optimal"] == pytest.approx(expected)
    if steps == 100:
        assert expected == pytest.approx(-7.24)


def test_a_player_with_a_memory_gets_the_optimal_return():
    """From every start, in the environment itself, with nothing but the walls that it shows."""
    env, returns = make_env("lgym/Maze-v0", {"fully_observed": False}), []
    for start in START_CELLS:
        seen, _ = env.reset(options={"position": start})
        possible, total, over, steps = list(START_CELLS), 0.0, False, 100
        while not over:
            possible = [
                cell
                for cell in possible
                if cell != GOAL and [after(cell, action) == cell for action in STEP] == seen.tolist()
            ]
            _, action = best(tuple(sorted(possible)), steps)
            possible = [after(cell, action) for cell in possible]
            seen, reward, terminated, truncated, _ = env.step(action)
            total, over, steps = total + reward, terminated or truncated, steps - 1
        returns.append(total)
    assert np.mean(returns) == pytest.approx(-7.24)


def test_optimal_moves():
    far = distances()
    for cell, moves in zip(START_CELLS, maze.optimal_moves(), strict=True):
        assert moves.tolist() == [far[after(cell, action)] == far[cell] - 1 for action in STEP]


def test_a_policys_value():
    """Optimal play; the left of row 5 played by walking into the wall above, for good."""
    policy = maze.optimal_moves().astype(float)
    assert maze.policy_value(policy) == pytest.approx(-6.84)
    assert maze.is_optimal(policy).all()
    lost = START_CELLS.index(5 * 13 + 4)
    policy[lost] = [0.1, 0.2, 0.4, 0.3]
    assert np.flatnonzero(~maze.is_optimal(policy)).tolist() == [lost]
    policy[lost] = [0, 0, 1, 0]
    through = [cell for cell in START_CELLS if cell % 13 < 5 or cell == 13 + 5]  # the left T
    kept = sum(distances()[cell] - 1 for cell in START_CELLS if cell not in through)
    assert len(through) == 10
    assert maze.policy_value(policy) == pytest.approx(-(10 * 100 + kept) / 25)
    assert maze.policy_value(policy, 1) == pytest.approx(-24 / 25)


def test_the_value_of_the_uniform_policy_is_the_random_return():
    assert maze.policy_value(np.full((25, 4), 0.25)) == pytest.approx(-85.1395810)


@pytest.mark.parametrize(
    ("policy", "match"), [(np.ones((26, 4)) / 4, "25 cells"), (np.ones((25, 4)) / 2, "add up to 1")]
)
def test_what_is_no_policy_is_refused(policy, match):
    """Probabilities of some cells, or of other actions, must not be taken for all."""
    with pytest.raises(ValueError, match=match):
        maze.policy_value(policy)


def test_gymnasium_makes_it():
    env = gymnasium.make("lgym/Maze-v0")
    assert isinstance(env.unwrapped, MazeEnv)
    assert env.spec.max_episode_steps == 100
