"""Frozen Lake's words: what lies to each side, as the environment moves."""

from __future__ import annotations

import gymnasium
import pytest

from lgym.agents import FrozenLakeAgent


def test_the_start_is_in_words():
    text = FrozenLakeAgent().format_observation(0)
    assert text == "left: wall, down: ice, right: ice, up: wall. You are in row 0, column 0"
    assert FrozenLakeAgent().format_observation(14).startswith("left: ice, down: wall, right: the goal, up: ice")


@pytest.mark.parametrize("action", range(4))
@pytest.mark.parametrize("map_name", ["4x4", "8x8"])
def test_what_is_said_of_a_side_is_what_lies_there(action, map_name):
    """By the environment's own transitions, from every cell that an episode goes on from."""
    env = gymnasium.make("FrozenLake-v1", map_name=map_name, is_slippery=False)
    rows = ["".join(cell.decode() for cell in row) for row in env.unwrapped.desc]
    agent = FrozenLakeAgent(rows)
    for state in range(len(rows) ** 2):
        row, column = divmod(state, len(rows))
        if rows[row][column] in "HG":
            continue
        ((_, after, reward, over),) = env.unwrapped.P[state][action]
        said = dict(side.split(": ") for side in agent.format_observation(state).split(". ")[0].split(", "))
        expected = "wall" if after == state else "the goal" if reward else "a hole" if over else "ice"
        assert said[agent.actions[action]] == expected


def test_the_prompt_says_where_the_goal_is_and_that_it_slips():
    assert "row 1, column 2" in FrozenLakeAgent(["SFF", "FFG"]).system_prompt
    assert "slippery" not in FrozenLakeAgent().system_prompt
    assert "slippery" in FrozenLakeAgent(is_slippery=True).system_prompt


@pytest.mark.parametrize("rows", [[], ["SF", "G"], ["SX", "FG"]])
def test_a_map_that_is_none_is_refused(rows):
    with pytest.raises(ValueError, match="map_rows"):
        FrozenLakeAgent(rows)
