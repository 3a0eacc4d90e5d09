"""One figure for several runs."""

from __future__ import annotations

import pytest
import torch

from lgym.functional import bootstrap_interval, interquartile_mean


def test_the_interquartile_mean_is_of_the_middle_half():
    """(2 + 3 + 4 + 5) / 4 of eight: what lies outside does not count, however far."""
    scores = torch.tensor([5.0, 0.0, 100.0, 3.0, 2.0, 1.0, 4.0, 6.0])
    assert interquartile_mean(scores).item() == 3.5
    assert interquartile_mean(scores.neg()).item() == -3.5


def test_of_fewer_than_four_it_is_the_mean():
    assert interquartile_mean(torch.tensor([1.0, 2.0, 9.0])).item() == 4.0
    assert interquartile_mean(torch.tensor([[1.0], [7.0]])).tolist() == [1.0, 7.0]


def test_two_scores_have_an_interval_from_one_to_the_other():
    """A resample is 0, 0.5 or 1, with probability 1/4, 1/2 and 1/4: 2.5 % of them lie within the first."""
    assert bootstrap_interval(torch.tensor([0.0, 1.0])) == (0.0, 1.0)
    assert bootstrap_interval(torch.tensor([0.0, 1.0]), confidence=0.4) == (0.5, 0.5)


def test_the_interval_of_many_is_that_of_their_mean():
    """Of 400 numbers from 0 to 1 the middle half, from 1/4 to 3/4, has a mean near 1/2 ± 2 x 0.02."""
    scores = torch.rand(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = bootstrap_interval(scores)
    assert 0.44 < low < 0.5 < high < 0.56
    assert bootstrap_interval(scores) == (low, high)
    assert bootstrap_interval(torch.tensor([0.7])) == (pytest.approx(0.7), pytest.approx(0.7))


def test_what_is_no_list_of_scores_is_refused():
    with pytest.raises(ValueError, match="scores"):
        bootstrap_interval(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="confidence must be above 0 and below 1, got 95"):
        bootstrap_interval(torch.zeros(2), confidence=95)
