"""The maze's words: the position, the goal and what stands in the way."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from lgym.agents import GeneralAgent, MazeAgent
from lgym.envs import make_env
from lgym.envs.maze import START_CELLS


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (1 * 13 + 3, "The goal is at row 8, column 6. You are at row 1, column 3. Walls: up."),
        (1 * 13 + 1, "The goal is at row 8, column 6. You are at row 1, column 1. Walls: left, up, down."),
        (7 * 13 + 6, "The goal is at row 8, column 6. You are at row 7, column 6. Walls: left, right."),
    ],
)
def test_in_words(cell, text):
    assert MazeAgent().format_observation(cell) == text
    assert MazeAgent().format_observation(np.int64(cell)) == text


def test_partly_observed_in_words():
    agent = MazeAgent()
    assert agent.format_observation(np.array([1, 1, 0, 0], dtype=np.int8)) == "Walls: left, right."
    assert agent.format_observation(np.array([0, 0, 0, 1], dtype=np.int8)) == "Walls: down."
    assert agent.format_observation(np.zeros(4, dtype=np.int8)) == "Walls: none."


@pytest.mark.parametrize("fully_observed", [True, False])
def test_what_is_said_of_the_walls_is_what_stops(fully_observed):
    """By the environment's own moves, from every cell."""
    env = make_env("lgym/Maze-v0", {"fully_observed": fully_observed}).unwrapped
    agent = MazeAgent()
    agent.bind(env)
    for cell in START_CELLS:
        observation, _ = env.reset(options={"position": cell})
        said = agent.format_observation(observation).split("Walls: ")[1].removesuffix(".").split(", ")
        stopping = [agent.actions[action] for action in range(4) if env.P[cell][action][0][1] == cell]
        assert said == (stopping or ["none"])


def test_every_cell_reads_otherwise():
    assert len({MazeAgent().format_observation(cell) for cell in START_CELLS}) == 25


def test_it_is_found_for_the_maze():
    """`GeneralAgent`, which a run without an agent takes, speaks its words in both mazes."""
    for fully_observed, text in (
        (True, "The goal is at row 8, column 6. You are at row 1, column 3. Walls: up."),
        (False, "Walls: up."),
    ):
        env = make_env("lgym/Maze-v0", {"fully_observed": fully_observed})
        agent = GeneralAgent()
        agent.bind(env)
        assert agent.format_observation(env.reset(options={"position": 16})[0]) == text
        assert agent.system_prompt.startswith("You walk through a maze.")
        assert agent.actions == ("left", "right", "up", "down")
        assert agent.reference_returns()["optimal"] == pytest.approx(-6.84 if fully_observed else -7.24)


def test_baselines_are_those_of_the_environment_that_is_played():
    agent = MazeAgent()
    assert agent.reference_returns() == pytest.approx({"random": -85.1395810, "optimal": -6.84})
    agent.bind(gymnasium.make("lgym/Maze-v0", fully_observed=False))
    assert agent.reference_returns() == pytest.approx({"random": -85.1395810, "optimal": -7.24})
    agent.bind(gymnasium.make("lgym/Maze-v0", max_episode_steps=1))
    # one of 25 cells is beside the goal, and one of four moves leads there
    assert agent.reference_returns() == pytest.approx({"random": -0.99, "optimal": -0.96})


def test_the_prompt_names_every_action():
    assert MazeAgent().system_prompt.endswith("Answer with one word: left, right, up or down.")
