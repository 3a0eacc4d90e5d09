"""Random parts of a batch: the chance of each prompt, and weights that keep every sum's expectation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.prompts import make_prompt, response_batch
from helpers.rollouts import candidate_learner, candidate_rollout, gradients_of, text_learner, text_rollout
from lgym.batch import ResponseBatch, inclusion_probabilities
from lgym.modules import GRPO, PPO
from lgym.rollout import Response

COUNTS = [6, 2, 1, 1]
"""Turns of four prompts. Of two prompts that are drawn, the first is certain (2 * 6 / 10 is above 1); the
others share 1 by 2, 1 and 1 of 4: chances 1, 0.5, 0.25 and 0.25."""


def make_batch(counts=COUNTS, chains=None) -> ResponseBatch:
    prompt_index = [prompt for prompt, count in enumerate(counts) for _ in range(count)]
    responses = [Response((turn,), (0.0,), True) for turn in range(len(prompt_index))]
    batch = response_batch([make_prompt(text) for text in "abcdef"[: len(counts)]], prompt_index, responses)
    return batch if chains is None else replace(batch, prompt_chains=chains)


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([1, 1, 2], 2, [0.5, 0.5, 1.0]),
        ([6, 2, 1, 1], 2, [1.0, 0.5, 0.25, 0.25]),
        # 3 * 8 / 16 = 1.5; then 2 * 5 / 8 = 1.25, where 3 * 5 / 16 was below 1; then 1 of 3
        ([8, 5, 1, 1, 1], 3, [1.0, 1.0, 1 / 3, 1 / 3, 1 / 3]),
        ([4, 3, 2], 3, [1.0, 1.0, 1.0]),
        ([3, 3, 3, 3], 1, [0.25] * 4),
    ],
)
def test_chances_by_hand(sizes, count, expected):
    """Catches a chance above 1 that is cut off and leaves the others too few."""
    found = inclusion_probabilities(np.array(sizes, dtype=float), count)
    assert found.tolist() == pytest.approx(expected)
    assert found.sum() == pytest.approx(count)


def test_prompts_are_drawn_by_their_chances():
    """Catches chances that are equal, weights that are not one over them, and draws of too many."""
    rng = np.random.default_rng(0)
    batch, drawn, draws = make_batch(), np.zeros(4), 2000
    for _ in range(draws):
        part = batch.thinned(2, rng)
        found = part.prompt_index.unique().tolist()
        assert [chain for (chain,) in part.prompt_chains] == found
        assert len(found) == 2
        drawn[found] += 1
        weights = {0: 1.0, 1: 2.0, 2: 4.0, 3: 4.0}
        assert part.turn_weights.tolist() == [weights[prompt] for prompt in part.prompt_index.tolist()]
        assert len(part) == sum(COUNTS[prompt] for prompt in found)
        assert part.loss_scale == batch.loss_scale
    assert drawn / draws == pytest.approx([1.0, 0.5, 0.25, 0.25], abs=0.04)  # 3.5 standard errors


def test_weighted_sums_are_unbiased():
    """Catches weights that favor what is met often: a sum over all turns is, over many draws, that of the
    parts."""
    rng = np.random.default_rng(0)
    batch = make_batch()
    losses = torch.tensor([3.0, -1.0, 2.0, 0.5, 1.0, 0.0, 5.0, -2.0, 7.0, -4.0])  # by response, 11.5 in all
    sums = []
    for _ in range(2000):
        part = batch.thinned(2, rng)
        turns = torch.tensor([turn for (turn,) in part.response_ids])
        sums.append(float((losses[turns] * part.turn_weights).sum()))
        assert float(part.turn_weights.sum()) == pytest.approx(10.0)  # 6 * 1 and 4, whichever is drawn
    # 5.5 and, by 0.5, 0.25 and 0.25, 2 * 3, 4 * 7 or -4 * 4: the standard error is 0.35
    assert np.mean(sums) == pytest.approx(11.5, abs=1.2)
    assert np.std(sums) > 5


@pytest.mark.parametrize("size", [4, 5, 100])
def test_a_small_batch_stays_as_it_is(size):
    """Catches weights, or a draw from the run's randomness, where nothing is left out."""
    rng = np.random.default_rng(0)
    batch = make_batch()
    assert batch.thinned(size, rng) is batch
    assert rng.random() == np.random.default_rng(0).random()


def test_prompts_that_extend_each_other_are_drawn_together():
    """Catches half a conversation, whose shared part would be computed for less: of two chains of two, one is
    drawn for two prompts, with the chance of its turns, 8 or 2 of 10."""
    batch = make_batch(chains=((0, 1), (2, 3)))
    rng, drawn = np.random.default_rng(0), []
    for _ in range(200):
        part = batch.thinned(2, rng)
        (chain,) = part.prompt_chains
        assert part.prompt_index.unique().tolist() == list(chain)
        weight = 10 / 8 if chain == (0, 1) else 10 / 2
        assert part.turn_weights.tolist() == pytest.approx([weight] * len(part))
        drawn.append(chain == (0, 1))
    assert np.mean(drawn) == pytest.approx(0.8, abs=0.1)


def test_of_long_chains_one_is_drawn_at_least():
    """Half a chain was wanted of these, and every other pass was empty."""
    batch, rng = make_batch(chains=((0, 1), (2, 3))), np.random.default_rng(0)
    for _ in range(20):
        part = batch.thinned(1, rng)
        assert len(part.prompt_chains) == 1
        assert float(part.turn_weights.sum()) == pytest.approx(10.0)


def test_minibatches_and_devices_keep_the_weights():
    """Catches a column that is lost, or left in another order, on the way to the loss."""
    part = make_batch().thinned(2, np.random.default_rng(0)).to("cpu")
    found = {}
    for minibatch in part.minibatches(1, [1, 0]):
        for ids, weight in zip(minibatch.response_ids, minibatch.turn_weights.tolist(), strict=True):
            found[ids] = weight
    assert found == dict(zip(part.response_ids, part.turn_weights.tolist(), strict=True))


LEARNERS = {
    "candidates": lambda: candidate_learner(entropy_coef=0.1),
    "text": lambda: text_learner(PPO, old_kl_coef=0.2, loss_aggregation="token_mean"),
    "tokens": lambda: text_learner(PPO, advantage_level="token"),
    "max_length": lambda: text_learner(GRPO, old_kl_coef=0.2, loss_aggregation="max_length"),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_weights_reach_the_gradients_of_policy_and_value(name):
    """Catches a term of the loss without weights: the gradient is the weighted sum of those of single turns,
    also where a turn occurs twice."""
    module = LEARNERS[name]()
    rollout = candidate_rollout(module) if name == "candidates" else text_rollout()
    batch, _ = module.prepare(rollout)
    weights = torch.tensor([1.0, 4.0, 0.5, 2.0, 3.0, 1.5])[: len(batch)]
    turns = [batch.select(torch.tensor([turn]), batch.loss_scale) for turn in range(len(batch))]
    parts = [gradients_of(module, turn) for turn in turns]
    plain = gradients_of(module, batch)
    weighted = gradients_of(module, replace(batch, turn_weights=weights))
    for part in ("lora", "value_head") if module.has_critic else ("lora",):
        names = [key for key in plain if part in key]
        assert max(float((weighted[key] - plain[key]).abs().max()) for key in names) > 1e-4
    for key, gradient in weighted.items():
        expected = sum(float(weight) * part[key] for weight, part in zip(weights, parts, strict=True))
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
