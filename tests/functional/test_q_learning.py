"""Values of actions that a policy implies, and their targets."""

from __future__ import annotations

import math

import pytest
import torch

from lgym.functional import (
    distillation_loss,
    double_q_targets,
    huber_loss,
    mean_by_pair,
    prior_action_values,
)


def test_prior_values_of_two_actions():
    """π = (0.8, 0.2): H = 0.50040 nats; V = 2, β = 0.5: 2 + 0.5 (ln 0.8 + H) = 2.13863, 2 + 0.5 (ln 0.2 + H) =
    1.44548."""
    q = prior_action_values(torch.tensor([[0.8, 0.2]]).log(), torch.tensor([2.0]), scale=0.5)
    torch.testing.assert_close(q, torch.tensor([[2.13863, 1.44548]]), atol=1e-5, rtol=0)


def test_prior_values_have_the_policy_as_softmax_and_the_value_as_mean():
    torch.manual_seed(0)
    logprobs = torch.randn(5, 4, dtype=torch.float64).log_softmax(-1)
    values = torch.randn(5, dtype=torch.float64)
    q = prior_action_values(logprobs, values, scale=0.3)
    torch.testing.assert_close((q / 0.3).log_softmax(-1), logprobs)
    torch.testing.assert_close((logprobs.exp() * q).sum(-1), values)


def test_what_cannot_be_chosen_has_no_value_and_no_gradient():
    scores = torch.tensor([[1.0, 2.0, -math.inf]], requires_grad=True)
    q = prior_action_values(scores.log_softmax(-1), torch.zeros(1), scale=1.0)
    assert q[0, 2] == -math.inf
    q[0, 0].backward()
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())
    assert scores.grad[0, 2] == 0


def test_the_trained_network_chooses_and_the_target_values():
    """Row 0 takes action 1: 1 + 0.5 * 10; row 1 has terminated; row 2 may not take action 1: 0 + 0.9 * 4."""
    online = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, -math.inf]])
    target = torch.tensor([[20.0, 10.0], [7.0, 7.0], [4.0, -math.inf]])
    targets = double_q_targets(torch.tensor([1.0, -1.0, 0.0]), torch.tensor([0.5, 0.0, 0.9]), online, target)
    torch.testing.assert_close(targets, torch.tensor([6.0, -1.0, 3.6]))


def test_a_terminated_row_without_candidates_is_no_nan():
    nothing = torch.full((1, 2), -math.inf)
    assert double_q_targets(torch.ones(1), torch.zeros(1), nothing, nothing).tolist() == [1.0]


def test_double_q_has_no_maximization_bias():
    """Sutton & Barto 2018, example 6.7: ten actions that are all worth -0.1, as two networks know them. The best of
    ten normal numbers is 1.54 on average, and what the other network says of it -0.1."""
    generator = torch.Generator().manual_seed(0)
    online, target = (torch.randn(20_000, 10, generator=generator) - 0.1 for _ in range(2))
    zeros, ones = torch.zeros(20_000), torch.ones(20_000)
    double = double_q_targets(zeros, ones, online, target).mean()
    single = double_q_targets(zeros, ones, target, target).mean()
    assert float(double) == pytest.approx(-0.1, abs=0.03)
    assert float(single) == pytest.approx(1.54 - 0.1, abs=0.03)


def test_huber_is_quadratic_and_then_linear():
    """0.5² / 2 = 0.125; beyond 1: 1 * (3 - 0.5) = 2.5."""
    loss = huber_loss(torch.tensor([0.5, -3.0]), torch.zeros(2), delta=1.0)
    torch.testing.assert_close(loss, torch.tensor([0.125, 2.5]))


def test_huber_refuses_no_width():
    with pytest.raises(ValueError, match="delta must be above 0, got 0"):
        huber_loss(torch.zeros(1), torch.zeros(1), delta=0.0)


def test_a_table_of_pairs_holds_means_and_nothing_else():
    q = torch.zeros(3, 2)
    table = mean_by_pair(
        q, torch.tensor([0, 0, 0, 2]), torch.tensor([1, 1, 0, 0]), torch.tensor([1.0, 3.0, 5.0, 0.0])
    )
    assert table.tolist() == [[5.0, 2.0], [-torch.inf] * 2, [0.0, -torch.inf]]


def test_distillation_compares_what_the_teacher_knows():
    """Between the first two: log of 3/4, 1/4 against 1/2, 1/2."""
    logprobs = torch.tensor([0.2, 0.2, 0.6]).log()
    teacher = torch.tensor([0.75, 0.25, 0.0]).log()
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert distillation_loss(logprobs, teacher).item() == pytest.approx(expected)


def test_distillation_teaches_nothing_where_one_action_is_known():
    scores = torch.tensor([[0.3, -1.0], [2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]], dtype=torch.float64)
    loss = distillation_loss(scores.log_softmax(-1), teacher)
    loss.sum().backward()
    assert loss.tolist() == [0.0, 0.0]
    assert scores.grad.abs().max() == 0.0


def test_distillation_ends_where_the_policy_is_the_teacher():
    scores = torch.tensor([[0.3, -1.0, 0.1]], dtype=torch.float64, requires_grad=True)
    logprobs = scores.log_softmax(-1)
    loss = distillation_loss(logprobs, logprobs.detach())
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    torch.testing.assert_close(scores.grad, torch.zeros_like(scores), atol=1e-12, rtol=0)
