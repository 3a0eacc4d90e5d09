"""Taxi's words: where to go, and what stands in the way."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from lgym.agents import TaxiAgent
from lgym.envs.tabular import optimal_action_values, tables


@pytest.fixture
def taxi():
    return gymnasium.make("Taxi-v4").unwrapped


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ((3, 0, 1, 2), "Free: down, up. Wall: left, right. Passenger: 3 up and 4 right"),  # green, (0, 4)
        ((0, 0, 0, 3), "Free: down, right. Wall: left, up. Passenger: here"),
        ((0, 0, 4, 3), "Free: down, right. Wall: left, up. Destination: 4 down and 3 right"),  # blue, (4, 3)
        ((2, 4, 4, 2), "Free: left, down, up. Wall: right. Destination: 2 down and 4 left"),  # yellow, (4, 0)
    ],
)
def test_in_words(taxi, state, text):
    assert TaxiAgent().format_observation(taxi.encode(*state)) == text


def test_walls_are_the_environments(taxi):
    """By its own transitions, from every state: what is free moves the taxi."""
    agent = TaxiAgent()
    for state in range(500):
        free = agent.format_observation(state).split(". ")[0].removeprefix("Free: ").split(", ")
        moving = {agent.actions[action] for action in range(4) if taxi.P[state][action][0][1] != state}
        assert set(free) == moving


def test_where_two_states_read_alike_the_same_actions_are_best(taxi):
    """So that the destination may be left out while the passenger waits."""
    q = optimal_action_values(tables(taxi), 200)
    best: dict[str, set] = {}
    for state in range(500):
        *_, passenger, destination = taxi.decode(state)
        if passenger != destination:  # only where an episode has ended
            right = frozenset(np.flatnonzero(q[state] > q[state].max() - 1e-9).tolist())
            best.setdefault(TaxiAgent().format_observation(state), set()).add(right)
    assert len(best) == 196
    assert all(len(rights) == 1 for rights in best.values())


def test_candidates_are_those_that_change_something(taxi):
    """At (3, 0) there are walls to both sides, and nobody to pick up."""
    state = taxi.encode(3, 0, 1, 2)
    info = {"action_mask": taxi.action_mask(state)}
    assert TaxiAgent().candidates(state, info) == ["down", "up"]
    assert list(TaxiAgent(allowed_only=False).candidates(state, info)) == [
        "down",
        "up",
        "right",
        "left",
        "pick",
        "drop",
    ]
    assert len(TaxiAgent().candidates(state, {})) == 6


def test_baselines_are_those_of_the_environment_that_is_played():
    agent = TaxiAgent()
    assert agent.reference_returns()["optimal"] == pytest.approx(7.93)
    agent.bind(gymnasium.make("Taxi-v4", max_episode_steps=1))
    assert agent.reference_returns()["optimal"] == pytest.approx(-1.0)  # nobody is delivered in one step
    agent.bind(gymnasium.make("Taxi-v4", is_rainy=True))
    assert -2 < agent.reference_returns()["optimal"] < 6
    agent.bind(gymnasium.make("Taxi-v4", fickle_passenger=True))
    assert agent.reference_returns() == {}
