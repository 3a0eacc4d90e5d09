"""Sokoban: pushes, rewards, and levels that can all be solved."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from lgym.envs import make_env
from lgym.envs.sokoban import BOX, PLAYER, TARGET, Level, SokobanEnv, made_level, optimal_return, solution

UP, DOWN, LEFT, RIGHT = range(4)


def level(*rows):
    """A level from rows of # (wall), . (floor), O (target), X (box), P (player)."""
    places = {
        kind: frozenset(
            (row, column)
            for row, text in enumerate(rows)
            for column, symbol in enumerate(text)
            if symbol in kind
        )
        for kind in (".OXP", "O", "X", "P")
    }
    (player,) = places["P"]
    return Level(places[".OXP"], places["O"], places["X"], player)


def test_a_box_is_pushed_and_never_pulled():
    start = level("######", "#.PXO#", "######")
    assert start.moved(LEFT).boxes == start.boxes
    assert start.moved(RIGHT).boxes == {(1, 4)}
    assert start.moved(RIGHT).player == (1, 3)
    assert start.moved(RIGHT).is_solved
    assert not start.is_solved


@pytest.mark.parametrize("row", ["#PX#O#", "#PXXO#", "#.#PXX"])
def test_a_box_against_a_wall_or_a_box_stays(row):
    """A push of two boxes at once would go through the second."""
    start = level("######", row, "######")
    assert start.moved(RIGHT) == start


def test_a_solution_is_a_shortest_one():
    """Around the box, two below it and one to its left, to push it up: right, up; or left, up, up, right..."""
    assert solution(level("#####", "#.O.#", "#.X.#", "#P..#", "#####")) == [RIGHT, UP]
    assert solution(level("#####", "#PO.#", "#.X.#", "#...#", "#####")) == [DOWN, DOWN, RIGHT, UP]
    assert solution(level("#####", "#X.O#", "#P..#", "#####")) is None  # a box in a corner


@pytest.mark.parametrize(("size", "boxes"), [(6, 1), (5, 2)])
def test_every_level_can_be_solved_in_no_fewer_moves_than_asked(size, boxes):
    """Levels drawn and not tried out leave boxes in corners: of 50 some."""
    env = SokobanEnv(size=size, boxes=boxes, least_moves=4)
    for seed in range(50):
        env.reset(seed=seed)
        way = solution(env.level)
        assert len(way) >= 4
        *_, (observation, reward, terminated, _, info) = (env.step(action) for action in way)
        assert (terminated, info["success"]) == (True, True)
        assert reward == pytest.approx(-0.1 + 1 + 10)
        assert not np.isin(observation, [BOX, TARGET]).any()


def test_rewards_of_moves_and_of_a_box_that_leaves_its_target():
    env = SokobanEnv(boxes=2)
    env.reset(seed=0)
    env.level = level("######", "#PX.O#", "#.XO.#", "######")
    rewards = [env.step(action)[1] for action in (DOWN, RIGHT, RIGHT)]
    assert rewards == pytest.approx([-0.1, -0.1 + 1, -0.1 - 1])


def test_the_best_return_is_that_of_the_shortest_solutions():
    """Played out, level by level."""
    env, returns = SokobanEnv(first_level=7, levels=3), []
    for number in range(7, 10):
        env.reset(seed=0)
        env.level = env.made_level(number)
        returns.append(sum(env.step(action)[1] for action in solution(env.level)))
    assert optimal_return(env) == pytest.approx(np.mean(returns))


def test_ranges_of_levels_are_kept_apart():
    """Level 1000 of one is level 0 of the other."""
    assert SokobanEnv(first_level=1000).made_level(1000) == made_level(1000, 6, 1, 0.2, 2)
    train, evaluated = SokobanEnv(levels=3), SokobanEnv(first_level=3, levels=3)
    drawn = []
    for env in (train, evaluated):
        levels = set()
        for seed in range(30):
            env.reset(seed=seed)
            levels.add(env.level)
        drawn.append(levels)
    assert [len(levels) for levels in drawn] == [3, 3]
    assert not drawn[0] & drawn[1]


def test_it_is_a_gymnasium_environment():
    check_env(SokobanEnv(), skip_render_check=True)
    env = make_env("lgym/Sokoban-v0", {"render_mode": "ansi"})
    observation, _ = env.reset(seed=1)
    assert env.render().count("P") == 1
    assert (observation == PLAYER).sum() == 1
    assert env.spec.max_episode_steps == 100


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 3}, "size=3"),
        ({"walls": 1.0}, r"walls=1\.0"),
        ({"boxes": 0}, "boxes=0"),
        ({"levels": 0}, "levels=0"),
        ({"size": 4, "least_moves": 50}, "No level of size 4 with 1 boxes"),
    ],
)
def test_settings_that_make_no_level_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SokobanEnv(**settings)
