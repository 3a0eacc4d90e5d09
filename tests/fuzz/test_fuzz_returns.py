"""The maths against plain Python loops in float64: any shape, any pattern of ends and masks, any magnitude,
rubbish where nothing is to be read."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.fuzz import inputs
from lgym.functional import (
    discounted_returns,
    explained_variance,
    gae,
    group_advantages,
    leave_one_out_advantages,
    masked_deviations,
    masked_mean,
    state_advantages,
    whiten,
)
from lgym.modules.advantages import token_timeline

NUMBERS = st.floats(-10, 10).map(lambda x: x if abs(x) > 1e-100 else 0.0) | st.sampled_from(
    [0.0, 1.0, -1.0, 1e12, -1e12, 1e-12, 0.1]
)
"""Whose squares are numbers too."""

SHARES = st.sampled_from([0.0, 1.0, 0.5, 0.95]) | st.floats(0, 1)
RUBBISH = st.sampled_from([math.nan, math.inf, -math.inf, 1e300])
SHAPES = st.tuples(st.integers(1, 3), st.integers(0, 7))


def grids(shape, entries):
    rows, columns = shape
    return st.lists(st.lists(entries, min_size=columns, max_size=columns), min_size=rows, max_size=rows)


def tensor(grid, shape, dtype=torch.float64):
    return torch.tensor(grid, dtype=dtype).reshape(shape)


def close(found, expected, scale=1.0):
    """Within float64's rounding of sums of numbers of that size."""
    torch.testing.assert_close(
        found,
        torch.as_tensor(expected, dtype=found.dtype).reshape(found.shape),
        rtol=1e-9,
        atol=1e-10 * scale,
    )


def sizes(*grids):
    return max([1.0, *(abs(x) for grid in grids for row in grid for x in row if math.isfinite(x))])


@st.composite
def streams(draw):
    """Rewards, values and ends of every kind; the values that nothing may read are rubbish."""
    shape = draw(SHAPES)
    rewards, values, following = (draw(grids(shape, NUMBERS)) for _ in range(3))
    terminated, truncated = (draw(grids(shape, st.booleans())) for _ in range(2))
    rubbish = draw(RUBBISH)
    following = [
        [rubbish if end else x for x, end in zip(*row, strict=True)]
        for row in zip(following, terminated, strict=True)
    ]
    return shape, rewards, values, following, terminated, truncated


@inputs(60)
@given(streams(), st.data(), SHARES)
def test_gae(stream, data, gae_lambda):
    """δ and A, backwards; γ one number or one for each turn."""
    shape, rewards, values, following, terminated, truncated = stream
    gamma = data.draw(SHARES | grids(shape, SHARES).map(lambda grid: tensor(grid, shape)))
    expected = []
    for b in range(shape[0]):
        later, row = 0.0, []
        for t in reversed(range(shape[1])):
            g = float(gamma[b, t]) if isinstance(gamma, torch.Tensor) else gamma
            delta = rewards[b][t] + (0.0 if terminated[b][t] else g * following[b][t]) - values[b][t]
            later = delta + (0.0 if terminated[b][t] or truncated[b][t] else g * gae_lambda * later)
            row.insert(0, later)
        expected.append(row)
    floats = (tensor(grid, shape) for grid in (rewards, values, following))
    flags = (tensor(grid, shape, torch.bool) for grid in (terminated, truncated))
    advantages, returns = gae(*floats, *flags, gamma=gamma, gae_lambda=gae_lambda)
    scale = sizes(rewards, values, following)
    close(advantages, torch.tensor(expected, dtype=torch.float64), scale)
    close(returns, torch.tensor(expected, dtype=torch.float64).reshape(shape) + tensor(values, shape), scale)


@inputs(60)
@given(streams(), SHARES)
def test_discounted_returns(stream, gamma):
    """Rewards to the end of the episode, and behind a cut the value of what followed."""
    shape, rewards, _, following, terminated, truncated = stream
    expected = []
    for b in range(shape[0]):
        row = []
        for t in range(shape[1]):
            total, discount = 0.0, 1.0
            for k in range(t, shape[1]):
                total += discount * rewards[b][k]
                discount *= gamma
                if terminated[b][k]:
                    break
                if truncated[b][k] or k == shape[1] - 1:
                    total += discount * following[b][k]
                    break
            row.append(total)
        expected.append(row)
    flags = (tensor(grid, shape, torch.bool) for grid in (terminated, truncated))
    found = discounted_returns(tensor(rewards, shape), tensor(following, shape), *flags, gamma=gamma)
    close(found, torch.tensor(expected, dtype=torch.float64), sizes(rewards, following))


EPISODES = st.lists(st.tuples(NUMBERS, st.integers(-2, 2), st.integers(0, 2)), min_size=0, max_size=12)


@inputs(80)
@given(EPISODES, st.booleans(), st.sampled_from([0.0, 1e-4, 1.0]))
def test_group_advantages(episodes, scale_by_std, eps):
    """Of each group alone; of equal returns, or one alone, exactly 0."""
    returns, groups, states = (
        (list(column) for column in zip(*episodes, strict=True)) if episodes else ([], [], [])
    )
    arguments = torch.tensor(returns, dtype=torch.float64), torch.tensor(groups, dtype=torch.int64)
    found = group_advantages(*arguments, scale_by_std=scale_by_std, eps=eps)
    others = leave_one_out_advantages(*arguments)
    of_states = state_advantages(
        arguments[0], torch.tensor(states, dtype=torch.int64), arguments[1], scale_by_std=False
    )
    assert found.shape == others.shape == of_states.shape == (len(episodes),)
    for i, (episode_return, group, state) in enumerate(episodes):
        members = [r for r, g in zip(returns, groups, strict=True) if g == group]
        alike = [r for r, g, s in zip(returns, groups, states, strict=True) if (g, s) == (group, state)]
        rest = [r for j, (r, g) in enumerate(zip(returns, groups, strict=True)) if g == group and j != i]
        scale = max(map(abs, members))
        std = stdev(members) if len(members) > 1 else 0.0
        if len(set(members)) == 1:
            assert float(found[i]) == float(others[i]) == 0.0
        else:
            by = std + eps if scale_by_std else 1.0
            assert float(found[i]) == pytest.approx(
                (episode_return - fmean(members)) / by, rel=1e-6, abs=1e-10 * scale / by
            )
            assert float(others[i]) == pytest.approx(
                episode_return - fmean(rest), rel=1e-6, abs=1e-10 * scale
            )
        assert float(of_states[i]) == pytest.approx(
            episode_return - fmean(alike), rel=1e-6, abs=1e-10 * scale
        )
        assert len(set(alike)) > 1 or float(of_states[i]) == 0.0


WEIGHTS = st.sampled_from([0.0, 1.0, 1.0, 0.5, 3.0])
ENTRIES = st.lists(st.tuples(NUMBERS, NUMBERS, WEIGHTS), max_size=10)


@inputs(80)
@given(ENTRIES, RUBBISH, st.booleans())
def test_means_and_spreads(entries, rubbish, as_mask):
    """Of what counts alone, whatever stands elsewhere, and no NaN on the way back."""
    counts = [(x, y, float(w > 0) if as_mask else w) for x, y, w in entries]
    x, y = (torch.tensor([e[i] if e[2] else rubbish for e in counts], dtype=torch.float64) for i in (0, 1))
    weights = torch.tensor([w for *_, w in counts], dtype=torch.float64)
    mask = weights.bool() if as_mask else weights
    total = sum(w for *_, w in counts)
    mean = sum(w * a for a, _, w in counts) / total if total else 0.0
    variance = sum(w * (a - mean) ** 2 for a, _, w in counts) / total if total else 0.0
    scale = max([1.0, *(abs(a) for a, _, w in counts if w)])
    x.requires_grad_()
    close(masked_mean(x, mask), mean, scale)
    masked_mean(x, mask).backward()
    close(x.grad, [w / total if total else 0.0 for *_, w in counts])
    deviations = masked_deviations(x.detach(), mask)
    close(deviations, [a - mean if w else 0.0 for a, _, w in counts], scale)
    alike = len({a for a, _, w in counts if w}) <= 1
    if alike:
        assert not deviations.any()
        assert not whiten(x.detach(), mask).any()
    elif variance > 1e-9 * scale * scale:
        std = math.sqrt(variance) + 1e-8
        found = whiten(x.detach(), mask)
        assert found.tolist() == pytest.approx(
            [(a - mean) / std if w else 0.0 for a, _, w in counts], rel=1e-6, abs=1e-7
        )
    error = [(b - a, w) for a, b, w in counts if w]
    mean_error = sum(w * e for e, w in error) / total if total else 0.0
    unexplained = sum(w * (e - mean_error) ** 2 for e, w in error)
    found = float(explained_variance(y, x.detach(), mask))
    if alike:
        assert math.isnan(found)
    elif variance > 1e-9 * scale * scale:
        assert found == pytest.approx(1 - unexplained / (variance * total), rel=1e-6, abs=1e-6)


@st.composite
def token_streams(draw):
    """E streams of turns of one or more tokens, some of them chosen, and the end of each turn."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    mask = tensor(draw(grids(shape, st.booleans())), shape, torch.bool)
    mask[0, 0] = True
    action_mask = [
        draw(st.lists(st.booleans(), min_size=3, max_size=3).filter(any)) for _ in range(int(mask.sum()))
    ]
    rewards, next_values = (tensor(draw(grids(shape, st.floats(-5, 5))), shape) for _ in range(2))
    terminated, truncated = (
        tensor(draw(grids(shape, st.booleans())), shape, torch.bool) | (~mask & end) for end in (True, False)
    )
    rollout = {
        "values": rewards,
        "next_values": next_values,
        "terminated": terminated,
        "truncated": truncated,
    }
    turns = SimpleNamespace(rewards=rewards, rollout=SimpleNamespace(**rollout, mask=mask))
    return turns, torch.tensor(action_mask)


@inputs(60)
@given(token_streams(), SHARES, SHARES)
def test_gae_over_tokens(stream, gamma, gae_lambda):
    """Token by token: within a turn no discount and no reward, at its last token the turn's."""
    turns, chosen = stream
    rollout = turns.rollout
    values = torch.arange(chosen.numel(), dtype=torch.float64).reshape(chosen.shape).sin()
    timeline = token_timeline(turns, values, chosen)
    found = gae(
        timeline.rewards,
        timeline.values,
        timeline.next_values,
        timeline.terminated,
        timeline.truncated,
        gamma=gamma ** timeline.ends_turn.double(),
        gae_lambda=gae_lambda,
    )[0]
    advantages = torch.zeros(chosen.shape, dtype=torch.float64).masked_scatter(chosen, found[timeline.mask])
    turn = len(chosen)
    for row, n in reversed(rollout.mask.nonzero().tolist()):
        turn -= 1
        later_turn = turn + 1 < len(chosen) and rollout.mask[row, n + 1 :].any()
        tokens = chosen[turn].nonzero().squeeze(1).tolist()
        last = tokens[-1]
        terminated = bool(rollout.terminated[row, n])
        ended = terminated or bool(rollout.truncated[row, n])
        expected = turns.rewards[row, n] - values[turn, last]
        expected = expected + gamma * (0 if terminated else rollout.next_values[row, n])
        first = int(chosen[turn + 1].nonzero()[0]) if later_turn else 0
        expected = expected + (
            gamma * gae_lambda * advantages[turn + 1, first] if later_turn and not ended else 0
        )
        close(advantages[turn, last], expected)
        for token, following in zip(tokens, tokens[1:], strict=False):
            delta = values[turn, following] - values[turn, token]
            close(advantages[turn, token], delta + gae_lambda * advantages[turn, following])
