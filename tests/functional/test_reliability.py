"""The share of advantages that is not chance, by hand and on advantages whose share is known."""

from __future__ import annotations

import pytest
import torch

from lgym.functional import split_half_reliability

# two states, two actions, one turn of each in each half
STATES, ACTIONS, HALVES = (torch.arange(8) // n % 2 for n in (2, 1, 4))


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ([1.0, -1.0, 1.0, -1.0], 1.0),
        ([3.0, -3.0, 3.0, -3.0], 1.0),  # another size, and the same order
        ([-1.0, 1.0, -1.0, 1.0], 0.0),  # the opposite is no agreement
        # r = (1 + 1) / sqrt(4 * 2), and 2 r / (1 + r)
        ([1.0, -1.0, 0.0, 0.0], 2 * 0.5**0.5 / (1 + 0.5**0.5)),
        # a value that is 5 too low in the second state moves both actions alike, and prefers none
        ([1.0, -1.0, 6.0, 4.0], 1.0),
    ],
)
def test_two_halves_agree_or_not(second, expected):
    """Catches a correlation of states in place of actions, and one half's reliability for that of both."""
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, *second])
    found = split_half_reliability(advantages, STATES, ACTIONS, HALVES)
    assert float(found) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_known_share(share):
    """Cells of 50 turns whose means have the variance s / (1 - s) / 50 beside noise of 1 / 50 are right to s.
    With two actions, of 4,000 states."""
    generator = torch.Generator().manual_seed(0)
    states, actions, turns = (torch.arange(400_000) // n % m for n, m in ((100, 4000), (50, 2), (1, 50)))
    truth = torch.randn(4000, 2, generator=generator) * (share / (1 - share) / 50) ** 0.5
    advantages = truth[states, actions] + torch.randn(len(states), generator=generator)
    found = split_half_reliability(advantages, states, actions, turns % 2)
    assert float(found) == pytest.approx(share, abs=0.06)


def test_a_turn_more_counts_more():
    """Cells with weights 1/2 and 4 * 4 / 8 = 2: r = (0.5 * 2 - 2 * 2) / ... is negative where equal weights
    would give 0."""
    repeats = torch.tensor([1, 1, 4, 4]).repeat(2)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -0.9, 0.9]).repeat_interleave(repeats)
    states, actions, halves = (x.repeat_interleave(repeats) for x in (STATES, ACTIONS, HALVES))
    assert float(split_half_reliability(advantages, states, actions, halves)) == 0.0
    assert float(split_half_reliability(advantages[:, None][:, 0], 1 - states, actions, halves)) == 0.0
    flipped = torch.tensor([1.0, -1.0, 1.0, -1.0, -0.9, 0.9, 1.0, -1.0]).repeat_interleave(repeats)
    assert float(split_half_reliability(flipped, states, actions, halves)) > 0.5


@pytest.mark.parametrize(
    ("states", "actions", "halves"),
    [
        (torch.arange(8), ACTIONS, HALVES),  # every state is met once
        (STATES, torch.zeros(8, dtype=torch.int64), HALVES),  # one action alone was tried
        (STATES, ACTIONS, torch.zeros(8, dtype=torch.int64)),  # one half is empty
        (STATES, (ACTIONS + HALVES * 2), HALVES),  # each half tried others
    ],
    ids=["states", "actions", "halves", "pairs"],
)
def test_where_nothing_can_be_compared_all_counts(states, actions, halves):
    assert float(split_half_reliability(torch.randn(8), states, actions, halves)) == 1.0


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match="states"):
        split_half_reliability(torch.zeros(8), STATES[:4], ACTIONS, HALVES)
