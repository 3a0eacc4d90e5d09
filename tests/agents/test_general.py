"""The agent of any environment: what it makes of one, and what can be set."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Text

from helpers import spaces
from lgym.agents import GeneralAgent
from lgym.envs import make_env


def bound(env, **settings):
    agent = GeneralAgent(**settings)
    agent.bind(env)
    return agent


def test_without_settings():
    """Enough to begin with, of an environment that nothing is known about."""
    space = Box(np.array([-1.2, -0.07]), np.array([0.6, 0.07]), dtype=np.float64)
    agent = bound(spaces.SpacesEnv(space, Discrete(3)))
    assert agent.system_prompt == "You play SpacesEnv. Answer with one of these: 0, 1, 2."
    assert agent.format_observation(np.array([-0.5, 0.01])) == "0: -0.50, 1: 0.010"
    assert list(agent.candidates(None, {})) == ["0", "1", "2"]
    assert agent.parse("2").action == 2


def test_with_settings():
    agent = bound(
        make_env("MountainCar-v0"),
        task="Swing the car up to the flag at 0.5 m.",
        actions=["left", "wait", "right"],
        names=["position", "velocity"],
        units={"position": "m"},
        decimals={"velocity": 2},
    )
    assert (
        agent.system_prompt
        == "Swing the car up to the flag at 0.5 m. Answer with one of these: left, wait, right."
    )
    assert agent.format_observation([-0.5, 0.01]) == "position: -0.50 m, velocity: 0.01"
    assert agent.parse('{"action": "right"}').action == 2


def test_a_mask_leaves_candidates_out():
    """Taxi's, and where `info` has it under another name; all are offered where it allows none, or is not
    asked."""
    agent = bound(make_env("Taxi-v4"))
    assert list(agent.candidates(0, {"action_mask": np.array([1, 0, 0, 0, 0, 1])})) == ["down", "drop"]
    assert len(agent.candidates(0, {"action_mask": np.zeros(6)})) == 6
    assert len(agent.candidates(0, {})) == 6
    legal = bound(make_env("Taxi-v4"), action_mask="legal")
    assert list(legal.candidates(0, {"legal": [1, 0, 0, 0, 0, 0], "action_mask": np.ones(6)})) == ["down"]
    assert len(bound(make_env("Taxi-v4"), action_mask=None).candidates(0, {"action_mask": np.eye(6)[0]})) == 6


def test_a_mask_that_does_not_fit_is_refused():
    """Cut to size it would allow the wrong ones."""
    with pytest.raises(ValueError, match="6 actions.*action_mask: null"):
        bound(make_env("Taxi-v4")).candidates(0, {"action_mask": [1, 1]})
    flat = {"action_mask": [1, 1, 1, 0, 1]}  # no masks of the parts
    with pytest.raises(ValueError, match="6 actions.*action_mask: null"):
        bound(spaces.env(action_space=MultiDiscrete([2, 3]))).candidates(0, flat)


def test_many_actions_have_to_be_spoken():
    """4 pairs are a list, 100 at most; 101 are not, and are read all the same."""
    assert len(bound(spaces.env(action_space=MultiDiscrete([2, 2]))).candidates(0, {})) == 4
    assert len(bound(spaces.env(action_space=Discrete(100))).candidates(0, {})) == 100
    agent = bound(spaces.env(action_space=Discrete(101)))
    assert agent.candidates(0, {}) is None
    assert agent.parse("100").action == 100
    assert "101 actions" in agent.why_no_candidates()
    assert len(bound(spaces.env(action_space=Discrete(101)), max_candidates=101).candidates(0, {})) == 101
    assert bound(spaces.env(action_space=Text(5, charset="a "))).candidates(0, {}) is None


def test_commands_of_the_info_are_candidates():
    """Where an action is any text: in an order that is the same each time, each once."""
    agent, info = (
        bound(spaces.env(action_space=Text(20))),
        {"admissible_commands": ["go west", "eat", "eat "]},
    )
    assert list(agent.candidates("", info)) == ["eat", "go west"]
    assert agent.parse("go west").action == "go west"
    assert agent.candidates("", {}) is None
    assert bound(spaces.env(action_space=Text(20)), commands=None).candidates("", info) is None
    assert list(bound(spaces.env(action_space=Discrete(2))).candidates("", info)) == ["0", "1"]


def test_free_text_is_read_by_json_or_pattern():
    """Also for actions that are no single number."""
    agent = bound(
        spaces.env(action_space=MultiDiscrete([20, 20])), pattern=r"Move: (.*)\.", fallback="random"
    )
    assert agent.parse('So: {"action": "3, 17"}').action.tolist() == [3, 17]
    assert agent.parse("I think. Move: 3, 17.").action.tolist() == [3, 17]
    assert not agent.parse("I move 3, 17.").ok
    assert agent.fallback == "random"


def test_a_game_that_takes_json_gets_the_whole_of_it():
    """Catches a tool call that is cut down to its action."""
    call = '{"action": "buy", "item": "tea"}'
    agent = bound(spaces.env(action_space=Text(99, charset="abc ")))
    assert agent.parse(call).action == call
    assert agent.parse('I think: {"action": "b"}').action == "b"


def test_what_a_pattern_does_not_match_is_no_action():
    """Catches a parse rate of 100 % in a word game whose answers all lack the form that was asked for."""
    agent = bound(spaces.env(action_space=Text(99, charset="abc ")), pattern=r"\[(.*)\]")
    assert agent.parse("I say [b c]").action == "b c"
    assert agent.parse('{"action": "b"}').action == "b"
    found = agent.parse("I say b c")
    assert not found.ok
    assert r"no match of the pattern '\\[(.*)\\]'" in found.reason
    assert bound(spaces.env(action_space=Text(99, charset="abc "))).parse("I say b c").ok


def test_before_it_knows_its_environment():
    """Nobody called bind."""
    for ask in (
        lambda agent: agent.system_prompt,
        lambda agent: agent.format_observation(0),
        lambda agent: agent.parse("0"),
    ):
        with pytest.raises(ValueError, match="bind"):
            ask(GeneralAgent())


@pytest.mark.parametrize("wrong", [{"max_candidates": 0}, {"pattern": "("}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GeneralAgent(**wrong)


def test_an_environment_without_a_spec():
    """One that was not made by its id."""
    env = gymnasium.make("CliffWalking-v1").unwrapped
    env.spec = None
    assert bound(env).system_prompt.startswith("Walk to the goal")
    assert bound(spaces.env(action_space=Discrete(2))).system_prompt.startswith("You play SpacesEnv.")
