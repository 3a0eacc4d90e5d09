"""What is compared within a group: by hand, against loops, and where a group teaches nothing."""

import time

import pytest
import torch
from torch import Tensor

from lgym.functional import group_advantages, leave_one_out_advantages, state_advantages

RETURNS = torch.tensor([1.0, 5.0, 3.0, 2.0, 2.0, 7.0])
GROUPS = torch.tensor([9, 4, 9, 4, 9, 1])
STATES = torch.tensor([5, 5, 8, 5, 5, 5])


def many(n: int, groups: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Returns of whole and broken numbers, so that some groups are all equal, and groups under scattered
    numbers."""
    generator = torch.Generator().manual_seed(seed)
    returns = torch.randn(n, generator=generator, dtype=torch.float64)
    whole = torch.randint(0, 2, (n,), generator=generator, dtype=torch.float64)
    mixed = torch.where(torch.rand(n, generator=generator) < 0.5, whole, returns)
    return mixed, torch.randint(-groups, groups, (n,), generator=generator) * 1_000_003


def looped(returns: Tensor, keys: list, *, scale_by_std: bool, eps: float = 1e-4) -> Tensor:
    """The formula of `group_advantages`, one entry after the other."""
    advantages = []
    for own, key in zip(returns.tolist(), keys, strict=True):
        group = [other for other, of in zip(returns.tolist(), keys, strict=True) if of == key]
        mean = sum(group) / len(group)
        if len(set(group)) == 1:
            advantages.append(0.0)
        elif scale_by_std:
            variance = sum((other - mean) ** 2 for other in group) / (len(group) - 1)
            advantages.append((own - mean) / (variance**0.5 + eps))
        else:
            advantages.append(own - mean)
    return torch.tensor(advantages, dtype=torch.float64)


def test_without_the_deviation():
    """Group 9: 1, 3, 2 with mean 2; group 4: 5, 2 with mean 3.5; group 1 is alone."""
    assert group_advantages(RETURNS, GROUPS, scale_by_std=False).tolist() == [-1.0, 1.5, 1.0, -1.5, 0.0, 0.0]


def test_with_the_deviation():
    """Group 9: s² = (1 + 1 + 0) / 2 = 1. Group 4: s² = 2.25 + 2.25 = 4.5, 1.5 / s = 0.7071."""
    found = group_advantages(RETURNS, GROUPS, scale_by_std=True, eps=0.0)
    torch.testing.assert_close(found, torch.tensor([-1.0, 0.7071068, 1.0, -0.7071068, 0.0, 0.0]))


def test_what_is_added_to_the_deviation():
    """Catches an eps that is lost or added elsewhere: group 9 has 1 / (1 + 1), group 4 has 1.5 / (2.1213 + 1)
    = 0.4806."""
    found = group_advantages(RETURNS, GROUPS, scale_by_std=True, eps=1.0)
    torch.testing.assert_close(found, torch.tensor([-0.5, 0.4805699, 0.5, -0.4805699, 0.0, 0.0]))


def test_less_the_mean_of_the_others():
    """Group 9: 1 - (3 + 2) / 2 = -1.5, 3 - (1 + 2) / 2 = 1.5, 2 - (1 + 3) / 2 = 0; group 4: 5 - 2, 2 - 5."""
    assert leave_one_out_advantages(RETURNS, GROUPS).tolist() == [-1.5, 3.0, 1.5, -3.0, 0.0, 0.0]


@pytest.mark.parametrize(("scale", "expected"), [(False, 0.5), (True, 0.7071068)])
def test_turns_of_one_group_in_one_state(scale, expected):
    """Group 9 is twice in state 5, with 1 and 2: mean 1.5, s² = 0.25 + 0.25, 0.5 / s = 0.7071. Group 4 is
    there with 5 and 5. State 8 is met once, and group 1 is alone: catches state 5 of one group compared with
    that of another.
    """
    to_go = torch.tensor([1.0, 5.0, 3.0, 5.0, 2.0, 7.0])
    found = state_advantages(to_go, STATES, GROUPS, scale_by_std=scale, eps=0.0)
    torch.testing.assert_close(found, torch.tensor([-expected, 0.0, 0.0, 0.0, expected, 0.0]))


def test_eps_reaches_the_turns():
    """Catches an eps that is not handed on: 0.5 / (0.7071 + 1) = 0.2929."""
    found = state_advantages(
        torch.tensor([1.0, 2.0]), torch.zeros(2), torch.zeros(2), scale_by_std=True, eps=1.0
    )
    torch.testing.assert_close(found, torch.tensor([-0.2928932, 0.2928932]))


@pytest.mark.parametrize("scale", [True, False])
def test_agrees_with_a_loop_over_groups(scale):
    """Catches any slip of index, on groups of every size from one on."""
    returns, groups = many(300, 60, seed=0)
    expected = looped(returns, groups.tolist(), scale_by_std=scale)
    assert (expected == 0).any()
    torch.testing.assert_close(
        group_advantages(returns, groups, scale_by_std=scale), expected, rtol=1e-10, atol=1e-12
    )


def test_leaving_one_out_agrees_with_a_loop():
    """Catches a baseline that knows the episode's own return, on groups of every size from one on."""
    returns, groups = many(300, 60, seed=1)
    values, keys = returns.tolist(), groups.tolist()
    expected = []
    for i, key in enumerate(keys):
        others = [values[j] for j in range(len(keys)) if j != i and keys[j] == key]
        expected.append(values[i] - sum(others) / len(others) if others else 0.0)
    found = leave_one_out_advantages(returns, groups)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [True, False])
def test_turns_agree_with_a_loop_over_pairs(scale):
    """Catches two pairs that get one number, where numbers of states and groups are negative, large and far
    apart."""
    to_go, groups = many(400, 6, seed=2)
    _, states = many(400, 12, seed=3)
    expected = looped(to_go, list(zip(groups.tolist(), states.tolist(), strict=True)), scale_by_std=scale)
    assert (expected != 0).sum() > 200
    found = state_advantages(to_go, states, groups, scale_by_std=scale)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("eps", [1e-4, 0.0])
def test_equal_returns_teach_exactly_nothing(scale, eps):
    """0.1 has no exact mean: rounding would be blown up by a deviation near 0, and without eps 0 / 0 would be
    NaN."""
    returns, groups = torch.full((7,), 0.1), torch.zeros(7)
    assert group_advantages(returns, groups, scale_by_std=scale, eps=eps).tolist() == [0.0] * 7
    assert state_advantages(returns, groups, groups, scale_by_std=scale, eps=eps).tolist() == [0.0] * 7
    assert leave_one_out_advantages(returns, groups).tolist() == [0.0] * 7


def test_a_group_does_not_touch_another():
    """Catches distances from a return of another group: next to -1e8 in float32, 0.25 would round away."""
    returns = torch.tensor([-1e8, 0.25, -1e8, 0.75])
    groups = torch.tensor([0, 1, 0, 1])
    assert group_advantages(returns, groups, scale_by_std=False).tolist() == [0.0, -0.25, 0.0, 0.25]
    assert leave_one_out_advantages(returns, groups).tolist() == [0.0, -0.5, 0.0, 0.5]


def test_no_episode():
    """Catches a crash on a rollout in which nothing ended."""
    none = torch.zeros(0)
    for scale in (True, False):
        assert group_advantages(none, none, scale_by_std=scale).shape == (0,)
        assert state_advantages(none, none, none, scale_by_std=scale).shape == (0,)
    assert leave_one_out_advantages(none, none).shape == (0,)


def test_many_groups_cost_little():
    """Catches a loop over groups: for 25,000 of them it takes seconds each time, this a hundredth of one. The
    limit leaves a busy machine room.
    """
    generator = torch.Generator().manual_seed(0)
    returns, groups = torch.randn(50_000, generator=generator), torch.arange(50_000) % 25_000
    start = time.perf_counter()
    group_advantages(returns, groups, scale_by_std=True)
    leave_one_out_advantages(returns, groups)
    state_advantages(returns, torch.arange(50_000) % 2, groups, scale_by_std=True)
    assert time.perf_counter() - start < 2


def test_advantages_carry_no_gradient():
    """Catches advantages that train what the returns came from."""
    returns = torch.tensor([1.0, 2.0], requires_grad=True)
    same = torch.zeros(2)
    assert not group_advantages(returns, same, scale_by_std=True).requires_grad
    assert not leave_one_out_advantages(returns, same).requires_grad
    assert not state_advantages(returns, same, same, scale_by_std=True).requires_grad


def test_shapes_must_agree():
    """Catches groups of turns given to episodes, and rows of turns that were not made flat."""
    three, two, square = torch.zeros(3), torch.zeros(2), torch.zeros(2, 2)
    with pytest.raises(ValueError, match=r"returns \[3\], groups \[2\]"):
        group_advantages(three, two, scale_by_std=True)
    with pytest.raises(ValueError, match=r"returns \[3\], groups \[2\]"):
        leave_one_out_advantages(three, two)
    with pytest.raises(ValueError, match=r"returns_to_go \[3\], states \[2\], groups \[3\]"):
        state_advantages(three, two, three, scale_by_std=True)
    with pytest.raises(ValueError, match="returns must have 1 dimensions"):
        group_advantages(square, square, scale_by_std=True)
    with pytest.raises(ValueError, match="returns must have 1 dimensions"):
        leave_one_out_advantages(square, square)
    with pytest.raises(ValueError, match="returns_to_go must have 1 dimensions"):
        state_advantages(square, square, square, scale_by_std=True)
