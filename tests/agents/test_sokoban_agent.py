"""Sokoban in words."""

from __future__ import annotations

import numpy as np

from lgym.agents import SokobanAgent
from lgym.envs.sokoban import SYMBOLS, SokobanEnv


def cells(*rows):
    return np.array([[SYMBOLS.index(symbol) for symbol in row] for row in rows])


LEVEL = cells("######", "#O___#", "#__X_#", "##P__#", "#____#", "######")


def test_the_box_is_told_from_the_player_and_the_target_from_the_box():
    """Catches offsets between other things, and sides of the player taken for those of the box."""
    assert SokobanAgent().format_observation(LEVEL) == (
        "Free: up, down, right. Wall: left. Box: 1 up and 1 right, blocked nowhere. It has to go 1 up and 2 left."
    )


def test_a_box_at_the_players_side_and_a_wall_at_the_boxes():
    shown = cells("#####", "#_PX#", "#__O#", "#####")
    assert SokobanAgent().format_observation(shown) == (
        "Free: down, left. Wall: up. Box: right. Box: 1 right, blocked up, right. It has to go 1 down."
    )


def test_boxes_on_targets_are_done_and_a_target_may_be_under_the_player():
    shown = cells("######", "#*_X_#", "#_S__#", "######")
    assert SokobanAgent().format_observation(shown) == (
        "Free: up, left, right. Wall: down. Box: 1 up and 1 right, blocked up. It has to go 1 down and 1 left."
    )


def test_the_map_is_shown_where_it_is_wanted():
    shown = SokobanAgent(show_map=True).format_observation(LEVEL)
    assert shown.splitlines()[1:3] == ["# # # # # #", "# O _ _ _ #"]


def test_the_reference_return_is_that_of_the_levels_that_are_played():
    agent, returns = SokobanAgent(), []
    for first_level in (0, 500):
        agent.bind(SokobanEnv(first_level=first_level, levels=20))
        returns.append(agent.reference_returns()["optimal"])
    assert returns[0] != returns[1]
    assert all(9.0 < value < 10.8 for value in returns)
