"""Guessing a number in words."""

from __future__ import annotations

import pytest

from lgym.agents import GuessNumberAgent
from lgym.envs.guess_number import GuessNumberEnv


@pytest.fixture
def agent():
    agent = GuessNumberAgent()
    agent.bind(GuessNumberEnv(lowest=1, highest=20, guesses=5))
    return agent


def test_the_prompt_says_the_range_and_what_is_left(agent):
    assert agent.system_prompt.startswith("Guess a number between 1 and 20 ")
    assert agent.format_observation([4, 9, -1, 2]) == "Between 4 and 9. 2 guesses left."
    assert agent.format_observation([4, 9, -1, 1]) == "Between 4 and 9. 1 guess left."


def test_hints_alone_leave_the_bounds_to_memory():
    agent = GuessNumberAgent(show_bounds=False)
    texts = [agent.format_observation([4, 9, hint, 2]) for hint in (-1, 0, 1)]
    assert texts == [f"{said} 2 guesses left." for said in ("Too low.", "No guess yet.", "Too high.")]


def test_the_last_number_of_an_answer_counts(agent):
    assert agent.parse("between 4 and 9 I say 7").action == 7
    assert GuessNumberAgent().parse("I say 1,000").action == 1000
    assert agent.parse("512.0, no: 12.0").action == 12
    assert "'12.5', which names no action" in agent.parse("I say 12.5").reason
    assert not agent.parse("seven").ok
    assert "21 is not between 1 and 20" in agent.parse("21").reason


def test_reference_returns_are_those_of_the_range(agent):
    assert agent.reference_returns()["optimal"] == 1.0
    assert GuessNumberAgent().reference_returns()["optimal"] == pytest.approx(1023 / 1025)
