"""Implicit Q-learning: against exact values, and what its policy imitates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.lookup import GAMMA, Lookup, fit, lake
from lgym.functional import expectile_loss
from lgym.modules import IQL


def test_its_values_are_between_those_of_the_log_and_the_optimal_ones():
    """An expectile of 1/2 values the log, whose actions are equally likely; towards 1 the best of them."""
    batch, optimal = lake(is_slippery=False)
    following, ends = batch.next_prompt_index.clamp(min=0).numpy(), (batch.discounts == 0).numpy()
    random = np.zeros(16)
    for _ in range(500):
        returns = batch.rewards.numpy() + GAMMA * np.where(ends, 0.0, random[following])
        random = np.bincount(batch.prompt_index.numpy(), returns, 16) / np.bincount(
            batch.prompt_index.numpy()
        )
    found = {}
    for expectile in (0.5, 0.9999):
        module = IQL(policy=Lookup(16, 4), gamma=GAMMA, expectile=expectile)
        fit(module, batch, 80, {"loss/value": "values", "loss/q": "twins"})
        found[expectile] = module.policy.llm.values.detach().numpy()
    assert np.abs(found[0.5] - random).max() < 1e-4
    assert np.abs(found[0.9999] - optimal.max(axis=1)).max() < 1e-2


def test_it_imitates_what_was_better_than_expected():
    """One logged turn of each of two actions of one state, of which the second paid more."""
    module = IQL(policy=Lookup(16, 4), gamma=GAMMA, advantage_temperature=0.5, largest_weight=1e9)
    batch, _ = lake(is_slippery=False)
    rows = torch.tensor([row for row in range(len(batch)) if batch.prompt_index[row] == 0])
    one = batch.select(rows[batch.choices[rows] < 2])
    module.policy.llm.twins.data[0, 1] = 1.0
    module.target.follow(1.0)
    terms, _ = module.objective(one)
    terms["loss/policy"].mean().backward()
    gradient = module.policy.llm.scores.grad[0]
    weights = np.exp(np.array([0.0, 1.0]) / 0.5)
    expected = weights.sum() / 2 * 0.25 - np.append(weights / 2, [0.0, 0.0])
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6)


def test_weights_are_cut_off():
    batch, _ = lake(is_slippery=False)
    module = IQL(policy=Lookup(16, 4), gamma=GAMMA, largest_weight=2.0)
    module.policy.llm.twins.data += 100.0
    module.target.follow(1.0)
    terms, _ = module.objective(batch)
    assert terms["loss/policy"].mean().item() == pytest.approx(2.0 * np.log(4))


def test_the_expectile_is_least_where_it_says():
    samples = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    grid = torch.linspace(0, 1, 10001, dtype=torch.float64)
    losses = expectile_loss(samples - grid[:, None], expectile=0.9).mean(1)
    assert grid[losses.argmin()].item() == pytest.approx(0.75, abs=1e-3)  # 0.9 (1 - v) = 3 * 0.1 v
    for wrong in (0.0, 1.0):
        with pytest.raises(ValueError, match="expectile must be"):
            expectile_loss(samples, expectile=wrong)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"expectile": 1.0}, "expectile is 1.0"),
        ({"advantage_temperature": 0.0}, "advantage_temperature is 0.0"),
    ],
)
def test_what_cannot_be_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        IQL(**settings)
