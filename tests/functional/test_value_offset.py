"""The level by which values miss the returns."""

from __future__ import annotations

import pytest
import torch

from lgym.functional import gae, value_offset

NOTHING_ENDS = torch.zeros(1000, dtype=torch.bool)


def level_of(value, *, gamma=0.9, horizon=1000):
    """Of a reward of 1 for every turn, and one value everywhere: right is 1 / (1 - 0.9) = 10."""
    values = torch.full((1000,), float(value))
    return float(value_offset(torch.ones(1000), values, values, NOTHING_ENDS, gamma=gamma, horizon=horizon))


@pytest.mark.parametrize("value", [0.0, 4.0, 10.0, 25.0])
def test_one_level_is_made_right_at_once(value):
    assert level_of(value) == pytest.approx(10.0 - value, abs=1e-4)


def test_no_more_is_known_than_a_rollout_shows():
    """Undiscounted, nothing ends: of 20 turns in a row what is seen is worth 20."""
    assert level_of(0.0, gamma=1.0, horizon=20) == pytest.approx(20.0, rel=1e-5)
    assert level_of(0.0, gamma=0.9, horizon=5) == pytest.approx(5.0, rel=1e-5)


def test_with_it_errors_are_0_on_average():
    """Also where values differ, turns terminate (what follows is not read there) and discounts differ."""
    draw = torch.Generator().manual_seed(0)
    rewards, values, following = torch.rand(3, 50, generator=draw, dtype=torch.float64)
    terminated = torch.rand(50, generator=draw) < 0.2
    gamma = torch.rand(50, generator=draw, dtype=torch.float64)
    following[terminated] = torch.inf
    offset = value_offset(rewards, values, following, terminated, gamma=gamma, horizon=50)
    errors = rewards + gamma * (following + offset).masked_fill(terminated, 0.0) - values - offset
    assert offset.abs() > 0.01
    assert float(errors.mean()) == pytest.approx(0.0, abs=1e-12)


def test_a_rollouts_last_turns_look_no_worse():
    """Twenty turns of reward 1, values of 0 that should be 10: the first turn's advantage sums 20 errors of 1,
    (1 - 0.882^20) / (1 - 0.882) = 7.786, the last one's is 1. At the right level all are 0."""
    rewards, zeros = torch.ones(1, 20), torch.zeros(1, 20)
    never = torch.zeros(1, 20, dtype=torch.bool)
    level = value_offset(rewards[0], zeros[0], zeros[0], never[0], gamma=0.9, horizon=20)
    for offset, spread in ((0.0, 6.786), (float(level), 0.0)):
        values = zeros + offset
        advantages, _ = gae(rewards, values, values, never, never, gamma=0.9, gae_lambda=0.98)
        assert float(advantages[0, 0] - advantages[0, -1]) == pytest.approx(spread, abs=1e-3)


def test_what_cannot_be_computed_is_refused():
    x, flags = torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    with pytest.raises(ValueError, match="horizon is 0"):
        value_offset(x, x, x, flags, gamma=0.9, horizon=0)
    with pytest.raises(ValueError, match="gamma"):
        value_offset(x, x, x, flags, gamma=1.1, horizon=1)
    with pytest.raises(ValueError, match="bool"):
        value_offset(x, x, x, x, gamma=0.9, horizon=1)
    with pytest.raises(ValueError, match="shape"):
        value_offset(x, x[:2], x, flags, gamma=0.9, horizon=1)
