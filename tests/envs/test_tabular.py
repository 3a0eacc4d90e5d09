"""Dynamic programming over tables, on a chain that one can do by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lgym.envs.tabular import optimal_action_values, optimal_value, policy_value, tables


class Chain:
    """State 0: action 0 stays and pays 1; action 1 goes to state 1 with 0.5, else ends, and pays 0. State 1:
    both actions end; action 1 pays 8."""

    P = {
        0: {0: [(1.0, 0, 1, False)], 1: [(0.5, 1, 0, False), (0.5, 1, 0, True)]},
        1: {0: [(1.0, 1, 0, True)], 1: [(1.0, 1, 8, True)]},
    }
    initial_state_distrib = np.array([0.75, 0.25])


def test_tables():
    """A transition that ends leads nowhere, whatever state it names."""
    known = tables(Chain())
    assert known.transitions.tolist() == [[[1, 0], [0, 0.5]], [[0, 0], [0, 0]]]
    assert known.rewards.tolist() == [[1, 0], [0, 8]]


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        (1, 0.75 * 1 + 0.25 * 8),  # staying pays 1, going nothing yet
        (2, 0.75 * 4 + 0.25 * 8),  # going: 0.5 * 8 = 4, staying twice: 2
        (3, 0.75 * 5 + 0.25 * 8),  # staying once, then going: 1 + 4
    ],
)
def test_the_optimal_value_knows_how_many_steps_are_left(steps, value):
    assert optimal_value(tables(Chain()), steps) == pytest.approx(value)


def test_action_values():
    """With two steps left: stay 1 + 1, go 0.5 * 8; and the last turn 0 or 8."""
    assert optimal_action_values(tables(Chain()), 2).tolist() == [[2, 4], [0, 8]]


def test_a_policys_value():
    """Half and half. v_1 = (0.5 * 1, 0.5 * 8) = (0.5, 4); v_2(0) = 0.5 * (1 + 0.5) + 0.5 * (0.5 * 4) =
    1.75."""
    assert policy_value(tables(Chain()), np.full((2, 2), 0.5), 2) == pytest.approx(0.75 * 1.75 + 0.25 * 4)
