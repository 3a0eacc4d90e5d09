"""Findings about responses that the agent, or the environment's action space, refuses."""

from __future__ import annotations

import math

from gymnasium.spaces import Discrete

from helpers.echo import EchoAgent
from helpers.letters import LetterAgent
from helpers.prompts import make_prompt
from lgym.cli.check.action_findings import neglect_findings, parse_findings, space_findings
from lgym.rollout import Prompt, Response


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


def test_an_action_that_the_model_leaves_out():
    """Catches MiniGrid's `forward`, which a small model says less than once in 1,000 turns, taken for what it
    tries; an action counts where it is offered, at each distinct prompt once."""

    def answer(text: str, **odds: float) -> tuple[Prompt, Response]:
        logprobs = tuple(math.log(odd) for odd in odds.values())
        return make_prompt(text, *odds), Response((1,), (0.0,), True, candidate_logprobs=logprobs)

    often = answer("wall", left=0.9999, forward=0.0001)
    (finding,) = neglect_findings([often, answer("lava", left=0.9995, forward=0.0005)], ["left", "forward"])
    assert not finding.problem
    assert "hardly ever answers 'forward': less than once in 1,000 turns" in finding.text
    assert "lgym.data.EveryAction" in finding.text
    assert not list(
        neglect_findings([*[often] * 50, answer("goal", left=0.9, forward=0.1)], ["left", "forward"])
    )
    assert not list(neglect_findings([often], ["left"]))
    assert not list(neglect_findings([answer("wall", left=1.0)], ["left", "forward"]))
