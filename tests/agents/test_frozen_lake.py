"""Frozen Lake's words: what lies to each side, as the environment moves."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv

from lgym.agents import FrozenLakeAgent


def test_the_start_is_in_words():
    assert (
        FrozenLakeAgent().format_observation(0)
        == "Ice: down, right. Wall: left, up. Goal: 3 down and 3 right"
    )
    assert (
        FrozenLakeAgent().format_observation(6)
        == "Ice: down, up. Hole: left, right. Goal: 2 down and 1 right"
    )
    assert (
        FrozenLakeAgent(["GF", "FS"]).format_observation(3)
        == "Ice: left, up. Wall: down, right. Goal: 1 up and 1 left"
    )


@pytest.mark.parametrize("map_name", ["4x4", "8x8"])
def test_every_cell_reads_otherwise(map_name):
    """So that the words leave nothing out: by how far the goal is."""
    rows = MAPS[map_name]
    texts = {FrozenLakeAgent(rows).format_observation(cell) for cell in range(len(rows) ** 2)}
    assert len(texts) == len(rows) ** 2


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


def test_a_random_lake_is_read_from_the_observation():
    """Row 0, column 1 of another map than the agent's own."""
    observation = {"position": 1, "map": "SFH\nHFF\nFFG"}
    assert (
        FrozenLakeAgent().format_observation(observation)
        == "Ice: left, down. Hole: right. Wall: up. Goal: 2 down and 1 right"
    )


def test_the_map_is_shown_if_asked_for():
    """On random maps the sides alone do not tell the way."""
    text = FrozenLakeAgent(["SF", "HG"], show_map=True).format_observation(1)
    assert text == "Ice: left, down. Wall: right, up. Goal: 1 down\nS X\nH G"


def test_the_lake_is_the_environments():
    """Its map and whether it slips, without saying them twice."""
    agent = FrozenLakeAgent()
    agent.bind(gymnasium.make("FrozenLake-v1", desc=["SH", "FG"], is_slippery=True))
    assert agent.format_observation(0) == "Ice: down. Hole: right. Wall: left, up. Goal: 1 down and 1 right"
    assert "slippery" in agent.system_prompt
    agent.bind(gymnasium.make("FrozenLake-v1", is_slippery=False))
    assert "slippery" not in agent.system_prompt
    agent.bind(gymnasium.make("lgym/RandomFrozenLake-v0", is_slippery=True))
    assert "slippery" in agent.system_prompt


def test_another_map_than_the_environments_is_refused():
    """It would describe a lake that is not there."""
    with pytest.raises(ValueError, match="map_rows"):
        FrozenLakeAgent(["SH", "FG"]).bind(gymnasium.make("FrozenLake-v1"))


def test_maps_that_nobody_sees_are_refused():
    """Gymnasium draws one in the constructor: each of a run's environments would have its own."""
    with pytest.raises(ValueError, match="lgym/RandomFrozenLake-v0"):
        FrozenLakeAgent().bind(gymnasium.make("FrozenLake-v1", map_name=None))
    FrozenLakeAgent().bind(FrozenLakeEnv(desc=["SF", "HG"]))  # one that was not made by its id


def test_baselines_are_those_of_the_environment_that_is_played():
    """The corner is one step away: 0.5 of all random first moves end there or in the hole, 5 paid for the
    goal."""
    agent = FrozenLakeAgent()
    assert agent.reference_returns()["optimal"] == 1.0
    agent.bind(gymnasium.make("FrozenLake-v1", is_slippery=True))
    assert agent.reference_returns()["optimal"] == pytest.approx(0.7442, abs=1e-4)
    agent.bind(
        gymnasium.make(
            "FrozenLake-v1", is_slippery=False, desc=["SG"], reward_schedule=(5, 0, 0), max_episode_steps=1
        )
    )
    assert agent.reference_returns() == {"random": 5 / 4, "optimal": 5.0}  # right is one of four


def test_the_prompt_says_that_it_slips():
    assert "slippery" not in FrozenLakeAgent().system_prompt
    assert "slippery" in FrozenLakeAgent(is_slippery=True).system_prompt


@pytest.mark.parametrize("rows", [[], ["SF", "G"], ["SX", "FG"], ["SF", "FF"]])
def test_a_map_that_is_none_is_refused(rows):
    with pytest.raises(ValueError, match="map_rows"):
        FrozenLakeAgent(rows)
