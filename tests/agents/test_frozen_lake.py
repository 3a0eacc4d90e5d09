"""Frozen Lake's words: what lies to each side, as the environment moves."""

from __future__ import annotations

import gymnasium
import pytest

from lgym.agents import FrozenLakeAgent


def test_the_start_is_in_words():
    assert FrozenLakeAgent().format_observation(0) == "Ice: down, right. Wall: left, up. Goal: 3 down and 3 right"
    assert FrozenLakeAgent().format_observation(6) == "Ice: down, up. Hole: left, right. Goal: 2 down and 1 right"
    assert FrozenLakeAgent(["GF", "FS"]).format_observation(3) == "Ice: left, up. Wall: down, right. Goal: 1 up and 1 left"


def test_every_cell_reads_otherwise():
    assert len({FrozenLakeAgent().format_observation(cell) for cell in range(16)}) == 16


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
        said = dict(part.split(": ") for part in agent.format_observation(state).split(". "))
        expected = "Wall" if after == state else "Hole" if over and not reward else "Ice"
        assert agent.actions[action] in said[expected].split(", ")


def test_the_prompt_says_that_it_slips():
    assert "slippery" not in FrozenLakeAgent().system_prompt
    assert "slippery" in FrozenLakeAgent(is_slippery=True).system_prompt


@pytest.mark.parametrize("rows", [[], ["SF", "G"], ["SX", "FG"], ["SF", "FF"]])
def test_a_map_that_is_none_is_refused(rows):
    with pytest.raises(ValueError, match="map_rows"):
        FrozenLakeAgent(rows)
