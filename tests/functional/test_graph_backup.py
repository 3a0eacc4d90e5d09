"""Values of actions by value iteration over transitions."""

from __future__ import annotations

import pytest
import torch

from helpers.lookup import every_transition, lake
from lgym.envs.maze import MazeEnv
from lgym.functional import graph_backup


def backed_up(rows, **options) -> list[float]:
    """Values of rows of s, c, R, d, s' and V(s')."""
    columns = [torch.tensor(column) for column in zip(*rows, strict=True)]
    columns[2], columns[3], columns[5] = (columns[i].double() for i in (2, 3, 5))
    return graph_backup(*columns, **options).tolist()


def test_the_best_choice_that_was_made_is_backed_up():
    """0 -> 1 by either choice; at 1 choice 0 paid 4 and choice 1 paid 2: 1 + 0.5 * 4 = 3, 0.5 * 4 = 2."""
    rows = [(0, 0, 1, 0.5, 1, 9), (0, 1, 0, 0.5, 1, 9), (1, 0, 4, 0, -1, 9), (1, 1, 2, 0, -1, 9)]
    assert backed_up(rows) == [3, 2, 4, 2]


def test_a_choice_is_worth_the_mean_of_what_it_led_to():
    """From 0 once to 1, which is worth 4, once to the end, which paid 1, and once to 2, where nothing was chosen and
    whose value was 6: (0.5 * 4 + 1 + 0.5 * 6) / 3 = 2."""
    rows = [(0, 0, 0, 0.5, 1, 9), (0, 0, 1, 0, -1, 9), (0, 0, 0, 0.5, 2, 6), (1, 1, 4, 0, 2, 9)]
    assert backed_up(rows) == [2, 2, 2, 4]


def test_a_way_is_followed_to_its_end():
    rows = [(n, n % 2, 0, 0.9, n + 1, 0) for n in range(30)] + [(30, 0, 1, 0, -1, 0)]
    assert backed_up(rows) == pytest.approx([0.9 ** (30 - n) for n in range(31)])
    assert backed_up(rows, max_sweeps=2)[:28] == [0.0] * 28


@pytest.mark.parametrize("env", ["lake", "slippery lake", "maze"])
def test_of_every_transition_it_finds_the_optimal_values(env):
    batch, optimal = every_transition(MazeEnv()) if env == "maze" else lake(env != "lake")
    got = graph_backup(
        batch.prompt_index,
        batch.choices,
        batch.rewards,
        batch.discounts,
        batch.next_prompt_index,
        batch.next_values,
        tolerance=1e-12,
    )
    expected = torch.from_numpy(optimal)[batch.prompt_index, batch.choices]
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


def test_no_transitions_have_no_values():
    nothing, index = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    assert len(graph_backup(index, index, nothing, nothing, index, nothing)) == 0


def test_columns_of_other_lengths_are_refused():
    numbers, index = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="next_values"):
        graph_backup(index, index, numbers, numbers, index, torch.zeros(3))
