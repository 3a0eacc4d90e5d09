"""Findings about responses that the agent, or the environment's action space, refuses."""

from __future__ import annotations

from gymnasium.spaces import Discrete

from helpers.echo import EchoAgent
from helpers.letters import LetterAgent
from lgym.cli.check.action_findings import parse_findings, space_findings
from lgym.rollout import Response


def answers(**counts):
    """So many responses of each text; those that an Echo agent cannot read are not parsed."""
    agent = EchoAgent()
    return [
        (Response((1,), (0.0,), True, text), agent.parse(text).ok)
        for text, count in counts.items()
        for _ in range(count)
    ]


def test_a_low_parse_rate_names_a_response_and_the_reason():
    """1 % and less is a problem, less than 20 % a warning; turns to imitate take the edge off."""
    (finding,) = parse_findings(answers(red=19, purple=81), EchoAgent(), imitates=False)
    assert not finding.problem
    assert finding.text.startswith("19.0% of 100 responses named an action. One that does not is 'purple'")
    assert "'purple' is none of red, green, blue" in finding.text
    assert "extract_action" in finding.text
    (finding,) = parse_findings(answers(purple=200, red=1), EchoAgent(), imitates=False)
    assert finding.problem
    (finding,) = parse_findings(answers(purple=200), EchoAgent(), imitates=True)
    assert not finding.problem
    assert "imitate" in finding.text
    assert not list(parse_findings(answers(red=20, purple=80), EchoAgent(), imitates=False))


def test_an_action_that_the_space_does_not_have():
    """As where a wrapper has made the space smaller: 'c' is the action 2."""
    said = [(Response((1,), (0.0,), True, text), True) for text in "abc"]
    (finding,) = space_findings(said, LetterAgent(), Discrete(2))
    assert "LetterAgent reads 'c' as the action 2" in finding.text
    assert "Discrete(2)" in finding.text
    assert not list(space_findings(said, LetterAgent(), Discrete(3)))
