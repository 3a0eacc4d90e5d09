"""Generalised advantage estimation: by hand, against the sum it abbreviates, and across the two ways to
end."""

from math import prod

import pytest
import torch
from torch import Tensor

from lgym.functional import discounted_returns, gae


def no(n: int) -> Tensor:
    return torch.zeros(1, n, dtype=torch.bool)


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def summed(rewards, values, next_values, terminated, truncated, gamma, gae_lambda) -> Tensor:
    """Equation 16 term by term: A_t = Σ_l (γλ)^l δ_{t+l}, up to the end of the episode or of the row.

    Where γ changes from turn to turn, (γλ)^l is the product over the turns t to t + l - 1.
    """
    B, N = rewards.shape
    gammas = torch.as_tensor(gamma, dtype=torch.float64).expand(B, N).tolist()
    out = torch.zeros(B, N, dtype=torch.float64)
    for b in range(B):
        for t in range(N):
            for k in range(t, N):
                bootstrap = 0.0 if terminated[b, k] else gammas[b][k] * next_values[b, k].item()
                delta = rewards[b, k].item() + bootstrap - values[b, k].item()
                out[b, t] += prod(gammas[b][i] * gae_lambda for i in range(t, k)) * delta
                if terminated[b, k] or truncated[b, k]:
                    break
    return out


def test_three_turns_by_hand():
    """Catches a wrong discount, a wrong sign or a recursion that runs the wrong way."""
    done = torch.tensor([[False, False, True]])
    advantages, returns = gae(
        row(1, 2, 3), row(0.5, 1, 1.5), row(1, 1.5, 7), done, no(3), gamma=0.5, gae_lambda=0.5
    )
    # δ_2 = 3 - 1.5               = 1.5      (terminated: the 7 is not read)
    # δ_1 = 2 + 0.5 * 1.5 - 1     = 1.75
    # δ_0 = 1 + 0.5 * 1 - 0.5     = 1
    # A_2 = 1.5;  A_1 = 1.75 + 0.25 * 1.5 = 2.125;  A_0 = 1 + 0.25 * 2.125 = 1.53125
    assert advantages.tolist() == [[1.53125, 2.125, 1.5]]
    # R = A + v
    assert returns.tolist() == [[2.03125, 3.125, 3.0]]


def test_one_turn():
    """Catches a read past the end of the row: one turn's advantage is r + γ next_v - v."""
    for terminated, expected in ((False, 2.0), (True, -1.0)):  # 1 + 0.5 * 6 - 2 = 2;  1 - 2 = -1
        advantages, _ = gae(row(1), row(2), row(6), ~no(1) & terminated, no(1), gamma=0.5, gae_lambda=0.9)
        assert advantages.tolist() == [[expected]]


def test_no_turn():
    """Catches a crash on a row without turns."""
    advantages, returns = gae(row(), row(), row(), no(0), no(0), gamma=0.9, gae_lambda=0.9)
    assert advantages.shape == returns.shape == (1, 0)


def test_agrees_with_the_sum_it_abbreviates():
    """Catches any slip of index or mask, on rows of several episodes that end in every way."""
    generator = torch.Generator().manual_seed(0)
    rewards, values, next_values = torch.randn(3, 6, 12, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 6, 12, generator=generator) < 0.3
    assert (terminated & truncated).any()
    for gamma, gae_lambda in ((0.9, 0.8), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)):
        advantages, returns = gae(
            rewards, values, next_values, terminated, truncated, gamma=gamma, gae_lambda=gae_lambda
        )
        expected = summed(rewards, values, next_values, terminated, truncated, gamma, gae_lambda)
        torch.testing.assert_close(advantages, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(returns, expected + values, rtol=1e-12, atol=1e-12)


def test_a_discount_of_each_turn_by_hand():
    """Catches the discount of the turn after, or before, in place of the turn's own, and one lost from either
    formula."""
    done, gamma = torch.tensor([[False, False, True]]), row(0.5, 0.25, 0.75)
    advantages, _ = gae(
        row(1, 2, 3), row(0.5, 1, 1.5), row(1, 1.5, 7), done, no(3), gamma=gamma, gae_lambda=0.5
    )
    # δ_2 = 3 - 1.5               = 1.5      (terminated: the 7 is not read)
    # δ_1 = 2 + 0.25 * 1.5 - 1    = 1.375
    # δ_0 = 1 + 0.5 * 1 - 0.5     = 1
    # A_2 = 1.5;  A_1 = 1.375 + 0.125 * 1.5 = 1.5625;  A_0 = 1 + 0.25 * 1.5625 = 1.390625
    assert advantages.tolist() == [[1.390625, 1.5625, 1.5]]


def test_a_discount_of_each_turn_agrees_with_the_sum():
    """Catches any slip of index in the discount, on rows of several episodes that end in every way."""
    generator = torch.Generator().manual_seed(2)
    rewards, values, next_values = torch.randn(3, 6, 12, generator=generator, dtype=torch.float64)
    gamma = torch.rand(6, 12, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 6, 12, generator=generator) < 0.2
    advantages, returns = gae(
        rewards, values, next_values, terminated, truncated, gamma=gamma, gae_lambda=0.8
    )
    expected = summed(rewards, values, next_values, terminated, truncated, gamma, 0.8)
    torch.testing.assert_close(advantages, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(returns, expected + values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_discount_for_every_turn_is_one_number(dtype):
    """Catches two ways to write the same discount that differ in precision or result."""
    generator = torch.Generator().manual_seed(3)
    rewards, values, next_values = torch.randn(3, 4, 9, generator=generator, dtype=dtype)
    terminated, truncated = torch.rand(2, 4, 9, generator=generator) < 0.2
    # Numbers without rounding, so that the product of the two is the same in either precision.
    one = gae(rewards, values, next_values, terminated, truncated, gamma=0.875, gae_lambda=0.75)
    each = gae(
        rewards,
        values,
        next_values,
        terminated,
        truncated,
        gamma=torch.full_like(rewards, 0.875),
        gae_lambda=0.75,
    )
    for number, tensor in zip(one, each, strict=True):
        assert tensor.dtype == dtype
        assert torch.equal(number, tensor)


def test_discount_counts_turns_where_entries_are_tokens():
    """Catches a reward that fades with the length of an answer: two turns of 2 and 3 tokens, and 8 at the
    very end."""
    tokens, zeros = row(0, 0, 0, 0, 8), row(0, 0, 0, 0, 0)
    done = torch.tensor([[False, False, False, False, True]])
    advantages, _ = gae(tokens, zeros, zeros, done, no(5), gamma=row(1, 0.5, 1, 1, 0.5), gae_lambda=1.0)
    assert advantages.tolist() == [[4.0, 4.0, 8.0, 8.0, 8.0]]  # half of 8 in the turn before the last


def test_lambda_one_gives_the_discounted_return():
    """Catches a bootstrap that differs between the two ways to write the same quantity."""
    generator = torch.Generator().manual_seed(1)
    rewards, values, next_values = torch.randn(3, 4, 9, generator=generator, dtype=torch.float64)
    # Within an episode the value of what a turn led to is the value of the next turn: so the sum telescopes.
    next_values[:, :-1] = values[:, 1:]
    terminated, truncated = torch.rand(2, 4, 9, generator=generator) < 0.2
    _, returns = gae(rewards, values, next_values, terminated, truncated, gamma=0.9, gae_lambda=1.0)
    expected = discounted_returns(rewards, next_values, terminated, truncated, gamma=0.9)
    torch.testing.assert_close(returns, expected, rtol=1e-12, atol=1e-12)


def test_an_endless_task_is_worth_one_over_one_minus_gamma():
    """Catches a truncation treated as a termination: the right value would no longer be its own target."""
    gamma, flags = 0.9, torch.tensor([[False, False, True]])
    ones, tens = row(1, 1, 1), row(10, 10, 10)  # v = 1 / (1 - 0.9) = 10
    advantages, returns = gae(ones, tens, tens, no(3), flags, gamma=gamma, gae_lambda=0.95)
    torch.testing.assert_close(advantages, row(0, 0, 0))  # 1 + 0.9 * 10 - 10 = 0
    torch.testing.assert_close(returns, tens)
    _, wrong = gae(ones, tens, tens, flags, no(3), gamma=gamma, gae_lambda=1.0)
    torch.testing.assert_close(wrong, row(2.71, 1.9, 1))  # 1 + 0.9 * 1.9;  1 + 0.9 * 1;  1


def test_a_value_learned_from_cut_episodes_reaches_the_endless_one():
    """Catches the same mistake where it does its harm: a value fitted to its own targets, turn after turn."""
    flags, learned = torch.tensor([[False, False, True]]), {}
    for name, (terminated, truncated) in {"truncated": (no(3), flags), "terminated": (flags, no(3))}.items():
        value = row(0, 0, 0)
        for _ in range(300):
            _, targets = gae(row(1, 1, 1), value, value, terminated, truncated, gamma=0.9, gae_lambda=0.95)
            value = targets.mean().expand(1, 3)
        learned[name] = value[0, 0].item()
    assert learned["truncated"] == pytest.approx(10, abs=1e-6)
    assert learned["terminated"] < 3


def test_nothing_crosses_the_end_of_an_episode():
    """Catches credit that leaks from one episode into the one before it in the same row."""
    values = row(0, 0, 0, 0)
    for end in ("terminated", "truncated"):
        flags = {"terminated": no(4), "truncated": no(4)}
        flags[end] = torch.tensor([[False, True, False, False]])
        poor, _ = gae(row(1, 1, 0, 0), values, values, **flags, gamma=0.9, gae_lambda=0.9)
        rich, _ = gae(row(1, 1, 99, 99), values, values, **flags, gamma=0.9, gae_lambda=0.9)
        assert torch.equal(poor[:, :2], rich[:, :2])


def test_the_value_after_a_termination_is_never_read():
    """Catches 0 * NaN: there is no observation after a termination, so its value may be anything."""
    done = torch.tensor([[False, True]])
    advantages, _ = gae(row(0, 1), row(0, 0), row(0, torch.nan), done, no(2), gamma=0.5, gae_lambda=1.0)
    assert advantages.tolist() == [[0.5, 1.0]]  # 0 + 0.5 * 1;  1


def test_padding_turns_change_nothing():
    """Catches a row that is cut in mid-episode, then padded, and loses its bootstrap to the padding."""
    short, _ = gae(row(1, 2), row(3, 4), row(4, 5), no(2), no(2), gamma=0.9, gae_lambda=0.8)
    long, _ = gae(row(1, 2, 0, 0), row(3, 4, 0, 0), row(4, 5, 0, 0), no(4), no(4), gamma=0.9, gae_lambda=0.8)
    assert torch.equal(long, torch.cat([short, row(0, 0)], dim=1))


def test_targets_carry_no_gradient():
    """Catches a policy loss that trains the value through its advantages."""
    values = row(1, 2).requires_grad_()
    advantages, returns = gae(row(1, 1), values, values, no(2), no(2), gamma=0.9, gae_lambda=0.9)
    assert not advantages.requires_grad
    assert not returns.requires_grad


def test_refuses_what_does_not_fit():
    """Catches inputs that would broadcast or compute in silence."""
    one, two = row(1, 1), row(1, 1, 1)
    with pytest.raises(ValueError, match=r"rewards \[1, 2\], values \[1, 3\]"):
        gae(one, two, one, no(2), no(2), gamma=0.9, gae_lambda=0.9)
    with pytest.raises(ValueError, match=r"2 dimensions, got shape \[2\]"):
        gae(one[0], one[0], one[0], no(2)[0], no(2)[0], gamma=0.9, gae_lambda=0.9)
    with pytest.raises(ValueError, match=r"terminated must be a bool tensor, got torch.float64"):
        gae(one, one, one, one, no(2), gamma=0.9, gae_lambda=0.9)
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\], got 9"):
        gae(one, one, one, no(2), no(2), gamma=9, gae_lambda=0.9)
    with pytest.raises(ValueError, match=r"gae_lambda must lie in \[0, 1\], got -1"):
        gae(one, one, one, no(2), no(2), gamma=0.9, gae_lambda=-1)
    with pytest.raises(ValueError, match=r"rewards \[1, 2\], gamma \[1, 3\]"):
        gae(one, one, one, no(2), no(2), gamma=two, gae_lambda=0.9)
    with pytest.raises(ValueError, match=r"rewards \[1, 2\], gamma \[\]"):
        gae(one, one, one, no(2), no(2), gamma=torch.tensor(0.9), gae_lambda=0.9)
