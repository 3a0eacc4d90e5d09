"""Discounted returns: what was earned, and what the value stands in for."""

import pytest
import torch
from torch import Tensor

from lgym.functional import discounted_returns, n_step_returns

NAN = torch.nan


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def flags(*numbers: int) -> Tensor:
    return torch.tensor([numbers], dtype=torch.bool)


def test_an_episode_that_terminates():
    """Catches a wrong discount or direction, and a read of values that a finished episode has no use for."""
    returns = discounted_returns(row(1, 2, 4), row(NAN, NAN, NAN), flags(0, 0, 1), flags(0, 0, 0), gamma=0.5)
    # 4;  2 + 0.5 * 4 = 4;  1 + 0.5 * 4 = 3
    assert returns.tolist() == [[3.0, 4.0, 4.0]]


def test_an_episode_cut_off_in_the_row():
    """Catches a truncation that counts what the next episode earns, or that counts as a termination."""
    returns = discounted_returns(row(1, 2, 4), row(NAN, 10, NAN), flags(0, 0, 1), flags(0, 1, 0), gamma=0.5)
    # 4;  2 + 0.5 * 10 = 7;  1 + 0.5 * 7 = 4.5
    assert returns.tolist() == [[4.5, 7.0, 4.0]]


def test_an_episode_cut_off_by_the_end_of_the_row():
    """Catches a rollout whose last episode, still going on, is treated as finished."""
    returns = discounted_returns(row(1, 2), row(NAN, 6), flags(0, 0), flags(0, 0), gamma=0.5)
    # 2 + 0.5 * 6 = 5;  1 + 0.5 * 5 = 3.5
    assert returns.tolist() == [[3.5, 5.0]]


def test_terminated_wins_over_truncated():
    """Catches a bootstrap from the value of a state in which nothing more can be earned."""
    returns = discounted_returns(row(1, 2), row(NAN, 6), flags(0, 1), flags(0, 1), gamma=0.5)
    assert returns.tolist() == [[2.0, 2.0]]  # 1 + 0.5 * 2;  2


def test_zeros_leave_out_what_was_cut_off():
    """Catches rewards of the next episode in a return without a value, which REINFORCE has none of."""
    returns = discounted_returns(
        row(1, 2, 4, 8), row(0, 0, 0, 0), flags(0, 0, 0, 0), flags(0, 1, 0, 0), gamma=0.5
    )
    # 8;  4 + 0.5 * 8 = 8;  2;  1 + 0.5 * 2 = 2
    assert returns.tolist() == [[2.0, 2.0, 8.0, 8.0]]


def test_agrees_with_the_sum_of_what_follows():
    """Catches any slip of index or mask, on rows of several episodes that end in every way."""
    generator = torch.Generator().manual_seed(0)
    rewards, next_values = torch.randn(2, 5, 11, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 5, 11, generator=generator) < 0.25
    assert (terminated & truncated).any()
    expected = torch.zeros(5, 11, dtype=torch.float64)
    for b in range(5):
        for t in range(11):
            for k in range(t, 11):
                expected[b, t] += 0.9 ** (k - t) * rewards[b, k]
                if terminated[b, k]:
                    break
                if truncated[b, k] or k == 10:
                    expected[b, t] += 0.9 ** (k - t + 1) * next_values[b, k]
                    break
    returns = discounted_returns(rewards, next_values, terminated, truncated, gamma=0.9)
    torch.testing.assert_close(returns, expected, rtol=1e-12, atol=1e-12)


def test_each_row_has_its_own_ends():
    """Catches a flag of one row that ends the episodes of all."""
    returns = discounted_returns(
        row(1, 1).expand(2, 2),
        torch.zeros(2, 2, dtype=torch.float64),
        torch.tensor([[True, True], [False, True]]),
        torch.zeros(2, 2, dtype=torch.bool),
        gamma=1.0,
    )
    assert returns.tolist() == [[1.0, 1.0], [2.0, 1.0]]


def test_no_turn():
    """Catches a crash on a row without turns."""
    assert discounted_returns(row(), row(), flags(), flags(), gamma=0.9).shape == (1, 0)


def test_keeps_the_higher_precision():
    """Catches float64 rewards rounded to the float32 of the values."""
    returns = discounted_returns(row(0.1), row(0.0).float(), flags(1), flags(0), gamma=0.9)
    assert returns.tolist() == [[0.1]]


def test_targets_carry_no_gradient():
    """Catches a loss that moves its own target."""
    values = row(1, 2).requires_grad_()
    assert not discounted_returns(row(1, 1), values, flags(0, 0), flags(0, 0), gamma=0.9).requires_grad


def test_the_finer_precision_is_kept():
    """Catches returns in the precision of the rewards alone: 1 + 2^-40 is 1 in float32."""
    returns = discounted_returns(row(1).float(), row(2**-40), flags(0), flags(0), gamma=1.0)
    assert returns.dtype == torch.float64
    assert returns.item() == 1 + 2**-40


def test_refuses_what_does_not_fit():
    """Catches inputs that would broadcast or compute in silence."""
    with pytest.raises(ValueError, match=r"rewards \[1, 2\], next_values \[1, 1\]"):
        discounted_returns(row(1, 1), row(1), flags(0, 0), flags(0, 0), gamma=0.9)
    with pytest.raises(ValueError, match="2 dimensions"):
        discounted_returns(row(1)[0], row(1)[0], flags(0)[0], flags(0)[0], gamma=0.9)
    with pytest.raises(ValueError, match="truncated must be a bool tensor"):
        discounted_returns(row(1), row(1), flags(0), row(0), gamma=0.9)
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\], got 1.5"):
        discounted_returns(row(1), row(1), flags(0), flags(0), gamma=1.5)


def n_step_by_loop(rewards, terminated, truncated, followed, gamma, n):
    """What n_step_returns says, turn by turn."""
    returns, last, discounts = [], [], []
    for t in range(len(rewards)):
        total, discount, at = 0.0, 1.0, t
        for at in range(t, min(t + n, len(rewards))):
            if at > t and not followed[at]:
                at -= 1
                break
            total += discount * rewards[at]
            discount *= gamma
            if terminated[at] or truncated[at]:
                break
        returns.append(total)
        last.append(at)
        discounts.append(0.0 if terminated[at] else discount)
    return returns, last, discounts


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 50])
def test_n_step_returns_equal_a_loop(n, cut):
    generator = torch.Generator().manual_seed(n)
    rewards = torch.randn(6, 40, generator=generator, dtype=torch.float64)
    terminated, truncated = (torch.rand(6, 40, generator=generator) < 0.1 for _ in range(2))
    followed = torch.rand(6, 40, generator=generator) < (0.7 if cut else 2.0)
    returns, last, discounts = n_step_returns(
        rewards, terminated, truncated, gamma=0.9, n=n, followed=followed if cut else None
    )
    for row in range(6):
        expected = n_step_by_loop(
            rewards[row].tolist(), terminated[row], truncated[row], followed[row], 0.9, n
        )
        assert returns[row].tolist() == pytest.approx(expected[0])
        assert last[row].tolist() == expected[1]
        assert discounts[row].tolist() == pytest.approx(expected[2])


def test_n_step_returns_by_hand():
    """γ = 0.5, n = 2, rewards 1, 2, 4: 1 + 0.5 * 2 with 0.25 of what follows; 2 + 0.5 * 4, which terminates."""
    false = torch.zeros(1, 3, dtype=torch.bool)
    terminated = torch.tensor([[False, False, True]])
    returns, last, discounts = n_step_returns(
        torch.tensor([[1.0, 2.0, 4.0]]), terminated, false, gamma=0.5, n=2
    )
    assert returns.tolist() == [[2.0, 4.0, 4.0]]
    assert last.tolist() == [[1, 2, 2]]
    assert discounts.tolist() == [[0.25, 0.0, 0.0]]


def test_n_step_returns_refuse_no_steps():
    false = torch.zeros(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="n must be 1 or more, got 0"):
        n_step_returns(torch.zeros(1, 1), false, false, gamma=0.9, n=0)
