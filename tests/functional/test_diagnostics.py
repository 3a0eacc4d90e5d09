"""Numbers to look at: they must say what their names say."""

from math import log

import pytest
import torch
from torch import Tensor

from lgym.functional import clip_fraction, explained_variance

NAN = torch.nan


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_explained_variance_by_hand():
    """Catches values and returns swapped, and a constant offset that is counted as an error."""
    returns = vector(0, 2, 4, 6)  # mean 3, variance (9 + 1 + 1 + 9) / 4 = 5
    assert explained_variance(returns + 7, returns).item() == 1.0
    assert explained_variance(vector(3, 3, 3, 3), returns).item() == 0.0
    # residuals 0 0 2 2: variance 1; 1 - 1/5
    assert explained_variance(vector(0, 2, 2, 4), returns).item() == pytest.approx(0.8, abs=1e-12)
    # the wrong sign: residuals 0 4 8 12, variance 4 * 5; 1 - 20/5
    assert explained_variance(-returns, returns).item() == pytest.approx(-3, abs=1e-12)


def test_explained_variance_of_what_counts():
    """Catches padding in the variances."""
    returns, values, mask = vector(0, 2, NAN, 4, 6), vector(0, 2, NAN, 2, 4), vector(1, 1, 0, 1, 1)
    assert explained_variance(values, returns, mask).item() == pytest.approx(0.8, abs=1e-12)


def test_explained_variance_where_returns_do_not_vary():
    """Catches a made-up number where there is nothing to explain; 1000.1 because its mean rounds."""
    constant = torch.full((7,), 1000.1, dtype=torch.float32)
    assert explained_variance(torch.arange(7.0), constant).isnan()
    assert explained_variance(constant, constant).isnan()
    assert explained_variance(vector(1), vector(2)).isnan()
    assert explained_variance(vector(1, 2), vector(3, 4), vector(0, 0)).isnan()


def test_clip_fraction_counts_each_side_by_its_bound():
    """Catches one bound used for both sides, and a bound that counts as outside."""
    logprobs = vector(0.5, 0.76, 1.0, 1.49, 1.6).log()
    # outside [0.75, 1.5]: the first and the last
    outside = clip_fraction(logprobs + log(0.25), torch.full_like(logprobs, log(0.25)), clip_low=0.25, clip_high=0.5)
    assert outside.tolist() == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert clip_fraction(logprobs, torch.zeros_like(logprobs), clip_low=0.25, clip_high=0.25).tolist() == [
        1,
        0,
        0,
        1,
        1,
    ]
    assert clip_fraction(logprobs, torch.zeros_like(logprobs), clip_low=0.6, clip_high=0.5).tolist() == [0, 0, 0, 0, 1]


def test_clip_fraction_before_the_first_step():
    """Catches rounding at the bounds: with no room at all, a ratio of exactly 1 is inside."""
    assert clip_fraction(vector(-3), vector(-3), clip_low=0.0, clip_high=0.0).tolist() == [0.0]


def test_refuses_what_does_not_fit():
    """Catches shapes that would broadcast and bounds that are no bounds."""
    x = torch.zeros(3)
    with pytest.raises(ValueError, match=r"values \[3, 1\], returns \[3\], weights \[3\]"):
        explained_variance(x[:, None], x)
    with pytest.raises(ValueError, match=r"values \[3\], returns \[3\], weights \[2\]"):
        explained_variance(x, x, x[:2])
    with pytest.raises(ValueError, match=r"logprobs \[3\], old_logprobs \[2\]"):
        clip_fraction(x, x[:2], clip_low=0.2, clip_high=0.2)
    with pytest.raises(ValueError, match="clip_low must lie"):
        clip_fraction(x, x, clip_low=-0.2, clip_high=0.2)
    with pytest.raises(ValueError, match="clip_high must lie"):
        clip_fraction(x, x, clip_low=0.2, clip_high=-0.2)
