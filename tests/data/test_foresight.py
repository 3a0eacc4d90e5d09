"""What is asked first is asked once of the same weights, and never of others."""

from __future__ import annotations

import pytest
import torch
from lgym.data.foresight import Foresight

from helpers.runs import assert_same_run, lgym, scalars
from lgym.batch import Context
from lgym.policies import CandidatePolicy

CONTEXTS = [Context((n,), ((1,),) * n, tuple("abcd"[:n]), str(n)) for n in (2, 3, 4)]

BLACKJACK = {
    "trainer__callbacks": "lgym.callbacks.BlackjackStrategy",
    "data__env": "Blackjack-v1",
    "data__agent": "lgym.agents.BlackjackAgent",
    "data__minibatch_size": 16,
}


class Weighed(torch.nn.Module):
    """A policy of one weight, which is also what it says of the value."""

    has_critic = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0]))
        self.asked: list[list[str]] = []

    @torch.no_grad()
    def evaluate(self, contexts, *, going_on=()):
        self.asked.append([context.observation_text for context in contexts])
        width = max(len(context.candidates) for context in contexts)
        logprobs = torch.full((len(contexts), width), -torch.inf)
        for row, context in zip(logprobs, contexts, strict=True):
            row[: len(context.candidates)] = -len(context.candidates)
        return logprobs, self.weight.expand(len(contexts)).clone()


def test_what_is_expected_is_asked_together_and_the_rest_when_it_is_met():
    policy, foresight = Weighed(), Foresight(lambda observations: [CONTEXTS[n] for n in observations])
    assert foresight.informed(policy) is policy, "nothing is expected"
    foresight.expect([0, 2])
    logprobs, values = foresight.informed(policy).evaluate([CONTEXTS[1], CONTEXTS[0]])
    assert policy.asked == [["2", "4"], ["3"]]
    assert logprobs.tolist() == [[-3.0, -3.0, -3.0], [-2.0, -2.0, -torch.inf]]
    assert values.tolist() == [1.0, 1.0]
    foresight.informed(policy).evaluate([CONTEXTS[2]])
    assert len(policy.asked) == 2
    foresight.informed(policy).evaluate([CONTEXTS[1]])
    assert policy.asked[2:] == [["3"]], "what was not expected is not kept"


def test_other_weights_and_other_prompts_are_asked_anew():
    """A write to `.data`, as averaging callbacks do, leaves no trace but the weights."""
    contexts = CONTEXTS[:2]
    policy, foresight = Weighed(), Foresight(lambda observations: [contexts[n] for n in observations])
    foresight.expect([0])
    foresight.informed(policy)
    policy.weight.data.mul_(2.0)
    _, values = foresight.informed(policy).evaluate([CONTEXTS[0]])
    assert values.tolist() == [2.0]
    contexts.reverse()  # as memories may have it read otherwise
    foresight.informed(policy)
    assert policy.asked == [["2"], ["2"], ["3"]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("change", ["sign", "order", "last bit"])
def test_weights_of_equal_norms_are_other_weights(change, dtype):
    """3, 4 and 4, 3 and -3, 4 all have the norm 5; the last bit of a thousandth is lost in that of a thousand."""
    policy, foresight = Weighed(), Foresight(lambda observations: [CONTEXTS[n] for n in observations])
    policy.weight = torch.nn.Parameter(torch.tensor([3.0, 4.0, 1000.0, 0.001], dtype=dtype))
    policy.evaluate = lambda contexts: (policy.asked.append(contexts), (torch.zeros(1, 2), policy.weight[:1].detach()))[1]
    foresight.expect([0])
    foresight.informed(policy)
    weights = policy.weight.data
    if change == "sign":
        weights[0] *= -1
    elif change == "order":
        weights[:2] = weights[:2].flip(0)
    else:
        weights[3] = torch.nextafter(weights[3], torch.tensor(1.0, dtype=dtype))
    foresight.informed(policy)
    foresight.informed(policy)
    assert len(policy.asked) == 2, "once for each state of the weights"


def test_a_run_asks_once_for_each_state_of_the_weights(tmp_path, model_folder, monkeypatch):
    """Rollouts, two evaluations and the exact value: all of them, and the first rollout, take three questions."""
    asked, evaluate = [], CandidatePolicy.evaluate

    def counted(self, contexts, **options):
        asked.append(len(contexts))
        return evaluate(self, contexts, **options)

    monkeypatch.setattr(CandidatePolicy, "evaluate", counted)
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **BLACKJACK)
    assert asked == [280] * 3
    metrics = scalars(tmp_path)
    assert len(metrics["blackjack/value_sampled"]) == 2
    assert metrics["val_greedy/return_mean"]


@pytest.mark.parametrize(("every", "stop"), [(1, 2), (2, 3)])
def test_it_resumes_exactly(tmp_path, model_folder, every, stop):
    """The run that was not stopped plays by answers from the end of the rollout before, where the exact value is asked for
    every time; the other asks again. In a batch of another size the tiny model's answers are others in their last bits."""
    settings = {**BLACKJACK, "trainer__callbacks__init_args__every_n_rollouts": every}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=4, **settings)
    lgym("fit", parts, model_folder, trainer__max_epochs=stop, **settings)
    lgym("fit", parts, model_folder, trainer__max_epochs=4, ckpt_path="last", **settings)
    assert_same_run(whole, parts)
