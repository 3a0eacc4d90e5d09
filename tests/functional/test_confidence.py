"""Half the widths of 95 % intervals."""

from __future__ import annotations

import math

import pytest
import torch

from lgym.functional import mean_margin, wilson_margin


def test_the_mean_of_a_hundred():
    assert float(mean_margin(torch.tensor(2.0), 100)) == pytest.approx(1.96 * 2 / 10)


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_say_nothing(n):
    assert float(mean_margin(torch.tensor(math.nan), n)) == math.inf


def test_all_of_ten_succeeded():
    """(1 + 0.19208 - 0.19208) / 1.38416 = 0.72246: what lies below it is 0.27754 away from 1."""
    assert float(wilson_margin(torch.tensor(1.0), torch.tensor(10))) == pytest.approx(0.27754, abs=1e-5)


def test_half_of_a_hundred_succeeded():
    """1.96 * sqrt(0.0025 + 0.000096) / 1.038416 = 0.09617, about the same rate."""
    assert float(wilson_margin(torch.tensor(0.5), torch.tensor(100))) == pytest.approx(0.09617, abs=1e-5)
