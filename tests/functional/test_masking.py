"""Means and spreads over the entries that count."""

import pytest
import torch
from torch import Tensor

from lgym.functional import masked_deviations, masked_mean, whiten

NAN = torch.nan


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def mask(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.bool)


def test_mean_of_what_counts():
    """Catches a division by all entries instead of those that count, and a read of those that do not."""
    x = torch.tensor([[1.0, 3.0, NAN], [5.0, NAN, torch.inf]], dtype=torch.float64)
    counts = torch.tensor([[True, True, False], [True, False, False]])
    assert masked_mean(x, counts).item() == 3.0  # (1 + 3 + 5) / 3
    assert masked_mean(x, counts, dim=-1).tolist() == [2.0, 5.0]  # (1 + 3) / 2;  5 / 1
    assert masked_mean(x, counts, dim=0).tolist() == [3.0, 3.0, 0.0]  # (1 + 5) / 2;  3 / 1;  nothing
    assert masked_mean(x, counts, dim=(0, 1)).item() == 3.0


def test_weights_below_one():
    """Catches a denominator that counts entries, or that is kept at 1 or above, where it should add
    weights."""
    # (0.25 * 2 + 0.5 * 8) / 0.75 = 4.5 / 0.75 = 6
    assert masked_mean(vector(2, 8), vector(0.25, 0.5)).item() == 6.0


def test_mean_of_nothing_is_zero_with_zero_gradient():
    """Catches 0 / 0: one batch of padding alone would make every weight of the model NaN."""
    x = vector(1, NAN).requires_grad_()
    mean = masked_mean(x, mask(0, 0))
    mean.backward()
    assert mean.item() == 0.0
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0]


def test_gradient_of_the_mean():
    """Catches gradient that reaches what does not count: d/dx = mask / 2."""
    x = vector(1, 2, NAN).requires_grad_()
    masked_mean(x, mask(1, 1, 0)).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.5, 0.5, 0.0]


def test_mean_of_half_precision_and_of_bools():
    """Catches a count kept in bfloat16, where 256 + 1 = 256, and a fraction that comes back as an integer."""
    ones = torch.ones(257, dtype=torch.bfloat16)
    ones[0] = 0
    mean = masked_mean(ones, torch.ones(257, dtype=torch.bool))
    assert mean.dtype == torch.float32
    assert mean.item() == pytest.approx(256 / 257, abs=1e-7)
    assert masked_mean(mask(1, 0, 0, 0), mask(1, 1, 1, 1)).item() == 0.25


def test_deviations():
    """Catches a mean taken over all entries, and a deviation left on an entry that does not count."""
    # the mean of 1, 3 and 8 is 4
    assert masked_deviations(vector(NAN, 1, 3, 8), mask(0, 1, 1, 1)).tolist() == [0.0, -3.0, -1.0, 4.0]
    # weighted: (3 * 1 + 1 * 5) / 4 = 2
    assert masked_deviations(vector(1, 5), vector(3, 1)).tolist() == [-1.0, 3.0]


def test_equal_entries_deviate_by_exactly_nothing():
    """Catches the rounding of the mean: whitening divides by the spread, so it would turn noise of 1e-5 into
    1."""
    x = torch.full((7,), 1000.1, dtype=torch.float32)
    assert (x - x.mean()).abs().max() > 0  # the plain way does round
    assert masked_deviations(x, torch.ones(7)).tolist() == [0.0] * 7
    assert whiten(x).tolist() == [0.0] * 7


def test_whiten_by_hand():
    """Catches a sample variance (n - 1), a mean that is put back, or a division by the variance."""
    # mean 4, deviations -3 -1 -1 5, variance (9 + 1 + 1 + 25) / 4 = 9
    torch.testing.assert_close(whiten(vector(1, 3, 3, 9)), vector(-1, -1 / 3, -1 / 3, 5 / 3))


def test_whiten_what_counts():
    """Catches statistics that see padding, and padding that comes back as anything but 0."""
    # mean 4, deviations -3 3, variance 9
    torch.testing.assert_close(whiten(vector(1, NAN, 7), mask(1, 0, 1)), vector(-1, 0, 1))
    # weights 1 and 3 are the entries 0 4 4 4: mean 3, deviations -3 and 1, variance (9 + 3 * 1) / 4 = 3
    torch.testing.assert_close(whiten(vector(0, 4), vector(1, 3)), vector(-3, 1) / 3**0.5)


def test_whiten_adds_eps_to_the_deviation():
    """Catches an eps that is added after the division or under the root."""
    # mean 0, standard deviation 1: 1 / (1 + 1) = 0.5
    assert whiten(vector(-1, 1), eps=1.0).tolist() == [-0.5, 0.5]


def test_whiten_where_there_is_no_spread():
    """Catches NaN where one entry counts, where none does, and where there is none."""
    assert whiten(vector(5)).tolist() == [0.0]
    assert whiten(vector(5)[0]).tolist() == 0.0
    assert whiten(vector(NAN, 5), mask(0, 1)).tolist() == [0.0, 0.0]
    assert whiten(vector(1, NAN), mask(0, 0)).tolist() == [0.0, 0.0]
    assert whiten(vector()).tolist() == []


def test_refuses_what_does_not_fit():
    """Catches a mask that would broadcast over the wrong axis."""
    x = torch.zeros(2, 3)
    for function, name in ((masked_mean, "mask"), (masked_deviations, "mask"), (whiten, "weights")):
        with pytest.raises(ValueError, match=rf"x \[2, 3\], {name} \[3\]"):
            function(x, torch.ones(3))
    with pytest.raises(ValueError, match=r"x \[0\], mask \[3\]"):  # also where there is nothing to deviate
        masked_deviations(x.new_zeros(0), torch.ones(3))
