"""The surrogate of the policy gradient, and PPO's clipped one in every quarter of ratio and advantage."""

from math import log

import pytest
import torch
from torch import Tensor

from lgym.functional import ppo_clip_loss, surrogate_loss


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


RATIO = vector(0.5, 0.5, 1.0, 1.0, 2.0, 2.0)
ADVANTAGES = vector(3, -3, 3, -3, 3, -3)


def loss_and_gradient(**bounds: float) -> tuple[Tensor, Tensor]:
    """The loss and d loss / d logprobs at RATIO, with old log-probabilities of 1/4."""
    old = torch.full_like(RATIO, log(1 / 4))
    logprobs = (old + RATIO.log()).requires_grad_()
    loss = ppo_clip_loss(logprobs, old, ADVANTAGES, **bounds)
    loss.sum().backward()
    assert logprobs.grad is not None
    return loss.detach(), logprobs.grad


def test_surrogate_by_hand():
    """Catches a lost minus sign: what went better than foretold must become likelier."""
    old = vector(log(1 / 4), log(1 / 4), log(1 / 4))
    logprobs = vector(log(1 / 2), log(1 / 8), log(1 / 4)).requires_grad_()
    loss = surrogate_loss(logprobs, old, vector(2, -5, 0))
    loss.sum().backward()
    expected = vector(-4.0, 2.5, 0.0)  # -2 * 2;  -1/2 * -5;  0
    torch.testing.assert_close(loss.detach(), expected)
    torch.testing.assert_close(logprobs.grad, expected)  # d ρ / d log π = ρ


def test_surrogate_leaves_the_advantages_alone():
    """Catches a value trained by the policy's loss, which would make everything look as good as foretold."""
    logprobs, advantages = vector(-0.5).requires_grad_(), vector(2).requires_grad_()
    surrogate_loss(logprobs, logprobs.detach(), advantages).sum().backward()
    assert logprobs.grad is not None
    assert advantages.grad is None


def test_surrogate_of_a_softmax_at_first():
    """Catches a gradient other than A (π - 1) for what was done and A π for what was not: π is 1/4 and 3/4, A
    is 2."""
    logits = vector(log(1), log(3)).requires_grad_()
    logprobs = logits.log_softmax(-1)[:1]
    surrogate_loss(logprobs, logprobs.detach(), vector(2)).sum().backward()
    torch.testing.assert_close(logits.grad, vector(2 * (1 / 4 - 1), 2 * 3 / 4))


def test_surrogate_is_the_expected_advantage_and_ends_with_its_action():
    """Catches -A log π, which still pushes with all its force where what it pushes away is next to never
    done. Of samples of the old policy, 1/2 and 1/2, the mean is -Σ π A."""
    logits, old = vector(8, -8).requires_grad_(), vector(log(1 / 2), log(1 / 2))
    logprobs = logits.log_softmax(-1)
    loss = surrogate_loss(logprobs, old, vector(1, -1)).mean()
    loss.backward()
    torch.testing.assert_close(loss.detach(), -(logprobs.detach().exp() * vector(1, -1)).sum())
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-6  # that of -A log π is 1/2 whatever the policy


def test_loss_by_hand():
    """Catches the minimum taken as a maximum, a lost minus sign, or bounds that are swapped."""
    loss, _ = loss_and_gradient(clip_low=0.25, clip_high=0.5)
    # ratio  A   ratio*A  clipped*A         minimum  loss
    #  0.5   3    1.5     0.75 * 3 = 2.25     1.5    -1.5
    #  0.5  -3   -1.5     0.75 * -3 = -2.25  -2.25    2.25
    #  1     3    3       3                   3      -3
    #  1    -3   -3      -3                  -3       3
    #  2     3    6       1.5 * 3 = 4.5       4.5    -4.5
    #  2    -3   -6       1.5 * -3 = -4.5    -6       6
    torch.testing.assert_close(loss, vector(-1.5, 2.25, -3, 3, -4.5, 6))


def test_gradient_stops_outside_the_bounds_and_leads_back():
    """Catches a clip on the wrong side: what has gone too far the wrong way must still be able to come
    back."""
    _, gradient = loss_and_gradient(clip_low=0.25, clip_high=0.5)
    # -ratio * A where the unclipped term is the minimum, else 0
    torch.testing.assert_close(gradient, vector(-1.5, 0, -3, 3, 0, 6))


def test_before_the_first_step_it_is_the_policy_gradient():
    """Catches a gradient halved or doubled where the clipped and the plain term are equal; good turns must
    rise."""
    logprobs = vector(-0.7, -2.0).requires_grad_()
    loss = ppo_clip_loss(logprobs, logprobs.detach(), vector(2, -5), clip_low=0.2, clip_high=0.2)
    loss.sum().backward()
    assert loss.tolist() == [-2.0, 5.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-2.0, 5.0]


def test_each_bound_has_its_own_effect():
    """Catches one bound used for both sides."""
    narrow, _ = loss_and_gradient(clip_low=0.25, clip_high=0.5)
    lower, _ = loss_and_gradient(clip_low=0.375, clip_high=0.5)
    higher, _ = loss_and_gradient(clip_low=0.25, clip_high=0.75)
    assert (narrow != lower).tolist() == [False, True, False, False, False, False]
    assert (narrow != higher).tolist() == [False, False, False, False, True, False]


def test_open_bounds_leave_the_plain_surrogate():
    """Catches bounds that cannot be switched off."""
    loss, _ = loss_and_gradient(clip_low=1.0, clip_high=torch.inf)
    old = torch.full_like(RATIO, log(1 / 4))
    torch.testing.assert_close(loss, surrogate_loss(old + RATIO.log(), old, ADVANTAGES))
    torch.testing.assert_close(loss, -RATIO * ADVANTAGES)


def test_very_unlikely_answers():
    """Catches a ratio of probabilities, which in float32 is 0 / 0 below e^-104: a long answer's are there."""
    old = torch.tensor([-500.0], dtype=torch.float32)
    loss = ppo_clip_loss(old + log(1.5), old, torch.ones_like(old), clip_low=0.2, clip_high=1.0)
    assert loss.item() == pytest.approx(-1.5, abs=1e-4)


def test_a_ratio_beyond_every_number_teaches_nothing_where_its_bound_counts():
    """Catches 0 * inf: e^1000 is inf, but the bound 1.2 counts, and with it no gradient."""
    logprobs, old = torch.zeros(2, requires_grad=True), torch.tensor([-1000.0] * 2)
    loss = ppo_clip_loss(logprobs, old, torch.tensor([2.0, 0.0]), clip_low=0.2, clip_high=0.2)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([-2.4, 0.0])  # -1.2 * 2
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0]
    assert ppo_clip_loss(logprobs[:1], old[:1], -torch.ones(1), clip_low=0.2, clip_high=0.2).item() == float(
        "inf"
    )


def test_padding_of_zeros_has_no_loss_and_no_gradient():
    """Catches NaN or gradient from padded entries, which hold zeros."""
    logprobs = torch.zeros(3, requires_grad=True)
    loss = ppo_clip_loss(logprobs, torch.zeros(3), torch.zeros(3), clip_low=0.2, clip_high=0.2)
    loss.sum().backward()
    assert loss.tolist() == [0.0, 0.0, 0.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0, 0.0]


def test_refuses_what_does_not_fit():
    """Catches advantages of turns given to log-probabilities of tokens, and bounds that are no bounds."""
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"logprobs \[2, 3\], old_logprobs \[2, 3\], advantages \[2, 1\]"):
        surrogate_loss(x, x, x[:, :1])
    with pytest.raises(ValueError, match=r"logprobs \[2, 3\], old_logprobs \[2, 3\], advantages \[2, 1\]"):
        ppo_clip_loss(x, x, x[:, :1], clip_low=0.2, clip_high=0.2)
    with pytest.raises(ValueError, match=r"clip_low must lie in \[0, 1\], got 1.2"):
        ppo_clip_loss(x, x, x, clip_low=1.2, clip_high=0.2)
    with pytest.raises(ValueError, match=r"clip_high must lie in \[0, inf\], got -0.2"):
        ppo_clip_loss(x, x, x, clip_low=0.2, clip_high=-0.2)
