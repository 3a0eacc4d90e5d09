"""Numbers to look at: they must say what their names say."""

from math import log

import pytest
import torch
from torch import Tensor

from lgym.functional import action_information, clip_fraction, explained_variance, variance_within_and_across

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
    outside = clip_fraction(
        logprobs + log(0.25), torch.full_like(logprobs, log(0.25)), clip_low=0.25, clip_high=0.5
    )
    assert outside.tolist() == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert clip_fraction(logprobs, torch.zeros_like(logprobs), clip_low=0.25, clip_high=0.25).tolist() == [
        1,
        0,
        0,
        1,
        1,
    ]
    assert clip_fraction(logprobs, torch.zeros_like(logprobs), clip_low=0.6, clip_high=0.5).tolist() == [
        0,
        0,
        0,
        0,
        1,
    ]


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
    with pytest.raises(
        ValueError, match=r"values \[2, 2\], groups \[2\]"
    ):  # would be the variances of half of them
        variance_within_and_across(x.new_zeros(2, 2), torch.zeros(2))
    with pytest.raises(
        ValueError, match=r"logprobs \[2, 3\], actions \[3, 2\]"
    ):  # as many entries in another order
        action_information(x.new_zeros(2, 3), torch.zeros(3, 2, dtype=torch.int64), x[:2])


def test_variance_within_and_across_by_hand():
    """Catches groups that count the same whatever their size, and unbiased estimates, which do not add up."""
    values, groups = vector(0, 2, 4, 4, 4, 9), torch.tensor([7, 7, 3, 3, 3, 5])
    # 0 2 within 1, mean 1; 4 4 4 within 0, mean 4; the 9 is alone. Of the five: (2 * 1 + 3 * 0) / 5 = 0.4
    # means 1 1 4 4 4 around 2.8: (2 * 1.8² + 3 * 1.2²) / 5 = 2.16
    within, across = variance_within_and_across(values, groups)
    assert within.item() == pytest.approx(0.4, abs=1e-12)
    assert across.item() == pytest.approx(2.16, abs=1e-12)
    assert (within + across).item() == pytest.approx(values[:5].var(correction=0).item(), abs=1e-12)


def test_variance_of_groups_of_one():
    """Catches a variance of 0 where nothing is known of it."""
    assert all(v.isnan() for v in variance_within_and_across(vector(1, 2), torch.tensor([0, 1])))
    within, across = variance_within_and_across(vector(1, 3), torch.tensor([4, 4]))
    assert (within.item(), across.item()) == (1.0, 0.0)


def test_action_information_by_hand():
    """Catches states that count once however often they were met, and an entropy of the wrong sign."""
    surely = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).log()
    actions = torch.tensor([[0, 1], [0, 1]])
    mean, information = action_information(surely, actions, torch.tensor([3, 1]))
    assert mean.tolist() == pytest.approx([0.75, 0.25])
    assert information.item() == pytest.approx(
        -0.75 * log(0.75) - 0.25 * log(0.25), abs=1e-12
    )  # nothing is left open
    # the same actions in another order: each state plays 1 with 0.8
    same = torch.tensor([[0.2, 0.8], [0.8, 0.2]], dtype=torch.float64).log()
    mean, information = action_information(same, torch.tensor([[0, 1], [1, 0]]), torch.tensor([3, 1]))
    assert mean.tolist() == pytest.approx([0.2, 0.8])
    assert information.item() == pytest.approx(0.0, abs=1e-12)


def test_action_information_with_padding_and_other_candidates():
    """Catches padding that becomes an action: state 0 has one candidate, state 1 two others."""
    logprobs = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64).log()
    mean, information = action_information(logprobs, torch.tensor([[0, 0], [1, 2]]), vector(1, 1))
    assert mean.tolist() == pytest.approx([0.5, 0.25, 0.25])
    assert information.item() == pytest.approx(log(2), abs=1e-12)  # 1.5 log 2 less log 2 / 2
