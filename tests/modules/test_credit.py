"""Credit along tokens, against a loop that says it plainly; and where a reward may not leak to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lgym.modules.credit import token_grid, turn_grid

from lgym.functional import gae

MASK = torch.tensor([[True, True, True], [True, True, False]])
COUNTS = [2, 1, 3, 4, 1]  # tokens chosen in each turn, stream by stream
CHOSEN = torch.zeros(5, 6, dtype=torch.bool)
for turn, places in enumerate(([0, 1], [2], [0, 3, 5], [0, 1, 2, 3], [4])):  # with forced tokens between
    CHOSEN[turn, places] = True


def rollout():
    """Stream 0: an episode of two turns, then one cut off; stream 1: one of two turns."""
    return SimpleNamespace(
        values=torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.0]]),
        next_values=torch.tensor([[0.2, 9.0, 0.7], [0.5, 9.0, 0.0]]),
        terminated=torch.tensor([[False, True, False], [False, True, True]]),
        truncated=torch.tensor([[False, False, True], [False, False, False]]),
        mask=MASK,
    )


REWARDS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]])
VALUES = torch.arange(30.0).view(5, 6) / 30


def plain(gamma, lam):
    """(advantage, return) of every chosen token, turn by turn, backwards through each stream."""
    results = {}
    for stream, turns in ((0, (0, 1, 2)), (1, (3, 4))):
        steps = [(turn, t) for turn in turns for t in CHOSEN[turn].nonzero().squeeze(1).tolist()]
        later = 0.0
        for i in reversed(range(len(steps))):
            turn, t = steps[i]
            n = turn - turns[0]
            last = i + 1 == len(steps) or steps[i + 1][0] != turn
            terminated = last and bool(rollout().terminated[stream, n])
            cut = terminated or (last and bool(rollout().truncated[stream, n]))
            after = float(rollout().next_values[stream, n]) if last else float(VALUES[steps[i + 1]])
            discount = gamma if last else 1.0
            delta = float(REWARDS[stream, n]) * last + discount * after * (not terminated) - float(VALUES[turn, t])
            later = delta + discount * lam * (0.0 if cut else later)
            results[turn, t] = (later, later + float(VALUES[turn, t]))
    return results


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (0.5, 0.0)])
def test_tokens_are_credited_as_a_plain_loop_says(gamma, lam):
    grid = token_grid(turn_grid(rollout(), REWARDS), VALUES, CHOSEN, MASK)
    steps = (grid.rewards, grid.values, grid.next_values, grid.terminated, grid.truncated)
    advantages, returns = gae(*steps, gamma=gamma ** grid.ends.float(), gae_lambda=lam)
    assert grid.real.sum(1).tolist() == [6, 5]
    found = torch.stack([advantages[grid.real], returns[grid.real]], dim=1)
    expected = plain(gamma, lam)
    order = [tuple(place) for place in CHOSEN.nonzero().tolist()]
    torch.testing.assert_close(found, torch.tensor([expected[place] for place in order]), rtol=1e-5, atol=1e-6)


def test_one_token_a_turn_is_credit_by_turns():
    """The same advantages, whichever column the token stands in."""
    chosen = torch.zeros(5, 6, dtype=torch.bool)
    chosen[torch.arange(5), torch.tensor([0, 5, 2, 1, 3])] = True
    values = torch.zeros(5, 6)
    values[chosen] = rollout().values[MASK]
    turns = turn_grid(rollout(), REWARDS)
    grid = token_grid(turns, values, chosen, MASK)
    settings = {"gamma": 0.9, "gae_lambda": 0.7}
    by_turns = gae(turns.rewards, turns.values, turns.next_values, turns.terminated, turns.truncated, **settings)[0]
    by_tokens = gae(grid.rewards, grid.values, grid.next_values, grid.terminated, grid.truncated, **settings)[0]
    torch.testing.assert_close(by_tokens[grid.real], by_turns[MASK])
