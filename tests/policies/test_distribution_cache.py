"""Distributions over candidates: each is computed once of the same weights, and choices are sampled from
it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import tiny
from helpers.runs import assert_same_run, lgym, scalars
from lgym.policies import CandidatePolicy
from lgym.policies.distribution_cache import DistributionCache, weights_digest
from lgym.rollout import Prompt

PROMPTS = [
    Prompt((1, count), tuple((number,) for number in range(count)), tuple("abcd"[:count]), str(count))
    for count in (2, 3, 4)
]

BLACKJACK = {
    "trainer__callbacks": "lgym.callbacks.BlackjackStrategy",
    "data__env": "Blackjack-v1",
    "data__agent": "lgym.agents.BlackjackAgent",
    "data__minibatch_size": 64,
    "data__update_epochs": 1,
}


class CountingPolicy(CandidatePolicy):
    """Notes the prompts of each computation."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: list[list[str]] = []
        self.bind(tiny.llm())

    def _compute(self, prompts, extendable):
        self.computed.append([prompt.observation_text for prompt in prompts])
        return super()._compute(prompts, extendable)


def trained_weight(policy: CandidatePolicy) -> torch.nn.Parameter:
    return next(parameter for parameter in policy.parameters() if parameter.requires_grad)


def test_prefetched_prompts_are_computed_together_and_others_when_they_come_up():
    policy = CountingPolicy()
    with policy.llm.frozen_weights():
        policy.prefetch([PROMPTS[0], PROMPTS[2]])
        responses, values = policy.act([PROMPTS[1], PROMPTS[0]], None)
        assert policy.computed == [["2", "4"], ["3"]]
        policy.act([PROMPTS[2]], None)
        policy.values(PROMPTS)
        assert len(policy.computed) == 2
    with policy.llm.frozen_weights():
        policy.prefetch([PROMPTS[0], PROMPTS[2]])
        policy.act(PROMPTS, None)
        assert policy.computed[2:] == [["3"]], "only prefetched distributions outlive a rollout"
    logprobs, expected = policy([PROMPTS[1], PROMPTS[0]])
    torch.testing.assert_close(values, expected)
    for response, row in zip(responses, logprobs.tolist(), strict=True):
        assert response.candidate_logprobs == pytest.approx(row[: len(response.candidate_logprobs)], abs=1e-5)


def test_values_to_bootstrap_from_are_computed_with_the_prompts_that_are_acted_on():
    """Each distinct prompt once: one batch costs less than two."""
    policy = CountingPolicy()
    with policy.llm.frozen_weights():
        policy.act([PROMPTS[0], PROMPTS[1], PROMPTS[0]], None, bootstrap=[PROMPTS[2], PROMPTS[0]])
        policy.values(PROMPTS)
    assert policy.computed == [["4", "2", "3"]]


def test_other_weights_and_other_prompts_are_computed_anew():
    """A write to `.data`, as averaging callbacks do, leaves no trace but the weights."""
    policy = CountingPolicy()
    policy.prefetch(PROMPTS[:1])
    policy.prefetch(PROMPTS[:1])
    assert policy.computed == [["2"]]
    trained_weight(policy).data.mul_(2.0)
    policy.prefetch(PROMPTS[:1])
    policy.prefetch(PROMPTS[1:2])  # as memories may render it otherwise
    assert policy.computed == [["2"], ["2"], ["3"]]


def test_nothing_is_kept_while_the_weights_may_change():
    policy = CountingPolicy()
    policy.act(PROMPTS, None)
    before = policy.distributions(PROMPTS)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1
    assert not torch.allclose(policy.distributions(PROMPTS), before)
    assert len(policy.computed) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("change", ["sign", "order", "last bit"])
def test_weights_of_equal_norms_are_other_weights(change, dtype):
    """3, 4 and 4, 3 and -3, 4 all have the norm 5; the last bit of a thousandth is lost in that of a
    thousand."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.tensor([3.0, 4.0, 1000.0, 0.001], dtype=dtype))
    digest, weights = weights_digest(module), module.weight.data
    assert weights_digest(module) == digest
    if change == "sign":
        weights[0] *= -1
    elif change == "order":
        weights[:2] = weights[:2].flip(0)
    else:
        weights[3] = torch.nextafter(weights[3], torch.tensor(1.0, dtype=dtype))
    assert weights_digest(module) != digest


def cached(*distributions: list[float]) -> tuple[DistributionCache, list[Prompt]]:
    cache, prompts = DistributionCache(), []
    for number, distribution in enumerate(distributions):
        count = len(distribution)
        prompts.append(Prompt((number,), tuple((c,) for c in range(count)), tuple("abcd"[:count]), ""))
        cache.add(prompts[-1:], torch.tensor([distribution]).log(), torch.tensor([float(number)]))
    return cache, prompts


def test_choices_follow_the_distribution():
    """A wrong inverse of the distribution shows here: 0.75 +- 4 standard errors of sqrt(.75 * .25 / 2000) =
    0.0097, also beside a longer list of candidates, whose row is wider."""
    cache, (two, four) = cached([0.75, 0.25], [0.0, 0.5, 0.5, 0.0])
    choices = np.array(
        [response.choice for response in cache.act([two, four] * 2000, np.random.default_rng(0))]
    ).reshape(2000, 2)
    assert abs(float((choices[:, 0] == 0).mean()) - 0.75) < 4 * 0.0097
    assert set(choices[:, 0]) == {0, 1}
    assert set(choices[:, 1]) == {1, 2}
    assert {response.choice for response in cache.act([two] * 100, None)} == {0}


def test_known_distributions_stay_as_they_are():
    cache, (prompt,) = cached([0.75, 0.25])
    cache.add([prompt], torch.tensor([[0.5, 0.5]]).log(), torch.tensor([9.0]))
    assert np.exp(cache.logprobs).tolist() == [[0.75, 0.25]]
    assert cache.values.tolist() == [0.0]
    assert cache.missing([prompt, PROMPTS[0], PROMPTS[0]]) == [PROMPTS[0]]


def test_a_prompt_that_is_given_twice_has_one_row():
    """Two would leave the rows of all later prompts one behind."""
    policy = CountingPolicy()
    distributions, values = policy.distributions(PROMPTS), policy.values(PROMPTS)
    with policy.llm.frozen_weights():
        policy.prefetch([PROMPTS[0], PROMPTS[0], PROMPTS[2]])
        torch.testing.assert_close(policy.distributions(PROMPTS), distributions)
        torch.testing.assert_close(policy.values(PROMPTS), values)


def test_a_run_computes_once_for_each_state_of_the_weights(tmp_path, model_folder, monkeypatch):
    """Rollouts, two evaluations and the exact value: all of them, and the first rollout, take three
    computations."""
    counts, compute = [], CandidatePolicy._compute

    def counted(self, prompts, extendable):
        counts.append(len(prompts))
        return compute(self, prompts, extendable)

    monkeypatch.setattr(CandidatePolicy, "_compute", counted)
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **BLACKJACK)
    assert counts == [280] * 3
    metrics = scalars(tmp_path)
    assert len(metrics["blackjack/value_sampled"]) == 2
    assert metrics["val_greedy/return_mean"]


@pytest.mark.parametrize(
    ("every", "stop", "last"), [(1, 1, 2), pytest.param(2, 3, 4, marks=pytest.mark.slow)]
)
def test_a_run_with_prefetched_prompts_resumes_exactly(tmp_path, model_folder, every, stop, last):
    """The run that was not stopped plays by distributions from the end of the rollout before, where the exact
    value is computed every time; the other computes them again. In a batch of another size the tiny model's
    distributions are others in their last bits."""
    settings = {**BLACKJACK, "trainer__callbacks__init_args__every_n_rollouts": every}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=last, **settings)
    lgym("fit", parts, model_folder, trainer__max_epochs=stop, **settings)
    lgym("fit", parts, model_folder, trainer__max_epochs=last, ckpt_path="last", **settings)
    assert_same_run(whole, parts)


def test_a_share_of_the_choices_takes_any_candidate():
    """Of three, one of which is certain: 0.7 + 0.3 / 3 of the choices take it."""
    prompt = PROMPTS[1]
    cache = DistributionCache()
    cache.add([prompt], torch.tensor([[0.0, -torch.inf, -torch.inf]]), torch.zeros(1))
    choices = [r.choice for r in cache.act([prompt] * 6000, np.random.default_rng(0), epsilon=0.3)]
    shares = np.bincount(choices, minlength=3) / 6000
    assert np.abs(shares - [0.8, 0.1, 0.1]).max() < 0.02
