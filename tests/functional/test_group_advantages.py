"""Group advantages: by hand, and where a group teaches nothing."""

import pytest
import torch

from lgym.functional import group_advantages

RETURNS = torch.tensor([1.0, 5.0, 3.0, 2.0, 2.0, 7.0])
GROUPS = torch.tensor([9, 4, 9, 4, 9, 1])


def test_without_the_deviation():
    """Group 9: 1, 3, 2 with mean 2; group 4: 5, 2 with mean 3.5; group 1 is alone."""
    assert group_advantages(RETURNS, GROUPS, scale_by_std=False).tolist() == [-1.0, 1.5, 1.0, -1.5, 0.0, 0.0]


def test_with_the_deviation():
    """Group 9: s² = (1 + 1 + 0) / 2 = 1. Group 4: s² = 2.25 + 2.25 = 4.5, 1.5 / s = 0.7071."""
    found = group_advantages(RETURNS, GROUPS, scale_by_std=True, eps=0.0)
    torch.testing.assert_close(found, torch.tensor([-1.0, 0.7071068, 1.0, -0.7071068, 0.0, 0.0]))


@pytest.mark.parametrize("scale", [True, False])
def test_equal_returns_teach_exactly_nothing(scale):
    """0.1 has no exact mean: rounding would be blown up by a deviation near 0."""
    found = group_advantages(torch.full((7,), 0.1), torch.zeros(7), scale_by_std=scale)
    assert found.tolist() == [0.0] * 7


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="groups"):
        group_advantages(torch.zeros(3), torch.zeros(2), scale_by_std=True)
