"""Discounted returns: what was earned, and what the value stands in for."""

import pytest
import torch
from torch import Tensor

from lgym.functional import discounted_returns

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
