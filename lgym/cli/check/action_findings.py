"""Findings about actions: responses that the agent or the action space refuses, and why; and actions that the
model leaves out."""

from collections.abc import Iterable, Iterator, Sequence
from math import exp
from statistics import fmean

import gymnasium

from lgym.agents.actions import is_action
from lgym.agents.base import TextAgent
from lgym.cli.check.findings import Finding
from lgym.rollout import Prompt, Response

MIN_PARSE_RATE = 0.01  # below it there is nothing to learn from
LOW_PARSE_RATE = 0.2  # below it most of the time goes into learning the form
RARE_ACTION = 0.001  # probability below which an action is hardly ever tried

Answers = Sequence[tuple[Response, bool]]  # responses, with False where no action could be read


def parse_findings(answers: Answers, agent: TextAgent, *, imitates: bool) -> Iterator[Finding]:
    """Responses in which no action can be found; with one of them, and the agent's reason."""
    rate = sum(parsed for _, parsed in answers) / len(answers)
    if rate >= LOW_PARSE_RATE:
        return
    refused = next(str(response.action_text) for response, parsed in answers if not parsed)
    reason = agent.parse(refused).reason or "no reason given"
    amount = "nothing" if rate < MIN_PARSE_RATE else "little"
    remedy = (
        f"There is {amount} to learn from. Say in the system prompt how to answer, read what the model does "
        "say with the agent's pattern or extract_action, show it the form by data.demonstrations "
        "(model.sft.rollouts), or let it choose between candidates: lgym.policies.CandidatePolicy or "
        "ThinkPolicy."
    )
    yield Finding(
        rate < MIN_PARSE_RATE and not imitates,
        f"{rate:.1%} of {len(answers)} responses named an action. One that does not is {refused[:120]!r}; "
        f"the agent says: {reason[:300].rstrip('.')}. "
        f"{'The turns to imitate have to teach the form first.' if imitates else remedy}",
    )


def space_findings(answers: Answers, agent: TextAgent, space: gymnasium.Space) -> Iterator[Finding]:
    """Actions that the agent reads in responses and that the environment's action space does not have."""
    for response, parsed in answers:
        if parsed and not is_action(space, action := agent.parse(str(response.action_text)).action):
            yield Finding(
                False,
                f"{type(agent).__name__} reads {str(response.action_text)[:80]!r} as the action {action!r}, "
                f"which is not in the environment's action space, {space}. Let extract_action return one "
                "that is; where a wrapper (data.wrappers) has changed the space, one of the new space.",
            )
            return


def neglect_findings(answers: Iterable[tuple[Prompt, Response]], actions: Sequence[str]) -> Iterator[Finding]:
    """Actions that the model hardly ever takes, by its probabilities at the prompts that offer them."""
    probabilities: dict[str, list[float]] = {action: [] for action in actions}
    for prompt, response in dict(answers).items():
        for candidate, logprob in zip(prompt.candidates, response.candidate_logprobs, strict=False):
            probabilities.setdefault(candidate, []).append(exp(logprob))
    neglected = [a for a in actions if probabilities[a] and fmean(probabilities[a]) < RARE_ACTION]
    if neglected:
        yield Finding(
            False,
            f"The model hardly ever answers {' or '.join(map(repr, neglected))}: less than once in "
            f"{1 / RARE_ACTION:,.0f} turns. Where rewards need that, it may never be paid. Begin with even "
            "odds: data.demonstrations: [{class_path: lgym.data.EveryAction}].",
        )
