"""The losses against their formulas in plain Python: near and far policies, open and closed bounds, any
numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.fuzz import inputs
from lgym.functional import (
    clip_fraction,
    clipped_value_loss,
    kl_k1,
    kl_k2,
    kl_k3,
    ppo_clip_loss,
    truncate_logits,
    value_loss,
)

NUMBERS = st.floats(-10, 10) | st.sampled_from([0.0, 1.0, -1.0, 1e12, -1e12, 1e-12, 0.1])
LOGPROBS = st.floats(-200, 0) | st.sampled_from([0.0, -1e-7, -1e-4, -1.0, -1.0001, -1000.0])
PAIRS = st.tuples(LOGPROBS, LOGPROBS) | st.builds(
    lambda x, d: (x, x + d), st.floats(-5, 0), st.floats(-1e-6, 1e-6)
)


@inputs(80)
@given(st.lists(PAIRS, max_size=6), st.sampled_from([torch.float32, torch.float64]))
def test_divergence_estimates(pairs, dtype):
    """By their formulas, and k2 and k3 never below 0, however near or far the policies are."""
    new, old = (torch.tensor([pair[i] for pair in pairs], dtype=dtype) for i in (0, 1))
    k1, k2, k3 = kl_k1(new, old), kl_k2(new, old), kl_k3(new, old)
    rounding, tiny = (3e-7, 1e-37) if dtype == torch.float32 else (1e-14, 1e-300)
    assert (k2 >= 0).all()
    assert (k3 >= 0).all()
    for a, b, one, two, three in zip(*(x.tolist() for x in (new, old, k1, k2, k3)), strict=True):
        assert one == pytest.approx(a - b, rel=rounding, abs=tiny)
        assert two == pytest.approx((a - b) ** 2 / 2, rel=3 * rounding, abs=tiny)
        exact = math.expm1(b - a) - (b - a) if b - a < 80 else math.inf
        if exact < math.inf:
            assert three == pytest.approx(exact, rel=1e-4, abs=2 * rounding * (abs(b - a) + 1))


BOUNDS = st.sampled_from([0.0, 0.2, 1.0]) | st.floats(0, 1)
WIDE = BOUNDS | st.sampled_from([math.inf, 5.0])


@inputs(100)
@given(
    st.lists(st.tuples(PAIRS, NUMBERS), max_size=6),
    BOUNDS,
    WIDE,
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_clipped_loss(entries, clip_low, clip_high, dtype):
    """Value and gradient; an advantage of 0, and a ratio beyond its bound, teach nothing however large the
    ratio."""
    new, old = (torch.tensor([pair[i] for pair, _ in entries], dtype=dtype) for i in (0, 1))
    advantages = torch.tensor([a for _, a in entries], dtype=dtype)
    new.requires_grad_()
    losses = ppo_clip_loss(new, old, advantages, clip_low=clip_low, clip_high=clip_high)
    losses.sum().backward()
    left = clip_fraction(new.detach(), old, clip_low=clip_low, clip_high=clip_high)
    largest = math.log(torch.finfo(dtype).max)
    columns = zip(*(x.tolist() for x in (new, old, advantages, losses, new.grad, left)), strict=True)
    for a, b, advantage, loss, gradient, outside in columns:
        ratio = math.exp(min(a - b, largest - 30))
        clipped = min(max(ratio, 1 - clip_low), 1 + clip_high)
        free = ratio * advantage <= clipped * advantage
        rel = 1e-4 if dtype == torch.float32 else 1e-9
        near = any(abs(ratio - bound) < 1e-5 for bound in (1 - clip_low, 1 + clip_high))
        assert near or outside == (ratio < 1 - clip_low or ratio > 1 + clip_high)
        if advantage == 0:
            assert (loss, gradient) == (0, 0)
        elif a - b < largest - 30 or (advantage > 0 and clip_high < math.inf):
            assert loss == pytest.approx(-min(ratio * advantage, clipped * advantage), rel=rel, abs=1e-30)
            assert near or gradient == pytest.approx(-advantage * ratio * free, rel=rel, abs=1e-30)


@inputs(60)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=6), st.floats(0, 5) | st.just(math.inf))
def test_value_losses(entries, clip):
    values, old, returns = (torch.tensor([e[i] for e in entries], dtype=torch.float64) for i in range(3))
    plain = [(v - r) ** 2 / 2 for v, _, r in entries]
    moved = [(o + min(max(v - o, -clip), clip) - r) ** 2 / 2 for v, o, r in entries]
    assert value_loss(values, returns).tolist() == pytest.approx(plain)
    scale = max([1.0, *(abs(x) for entry in entries for x in entry)])
    found = clipped_value_loss(values, old, returns, clip=clip).tolist()
    assert found == pytest.approx(list(map(max, plain, moved)), rel=1e-6, abs=1e-9 * scale * scale)


LOGITS = st.lists(st.floats(-4, 4) | st.sampled_from([0.0, 1.0, 30.0, -math.inf]), min_size=1, max_size=8)


@inputs(80)
@given(
    LOGITS.filter(lambda row: max(row) > -math.inf),
    st.integers(0, 9),
    st.sampled_from([1.0, 1.0, 1.0, 1e-9]) | st.floats(0.01, 1),
)
def test_truncation(logits, top_k, top_p):
    """The likeliest tokens, as few as will do; what is kept is what it was."""
    found = truncate_logits(torch.tensor(logits, dtype=torch.float64), top_k=top_k, top_p=top_p).tolist()
    kept = [i for i, x in enumerate(found) if x > -math.inf]
    assert [found[i] for i in kept] == [logits[i] for i in kept]
    assert kept
    assert found[max(range(len(logits)), key=logits.__getitem__)] > -math.inf or logits.count(max(logits)) > 1
    allowed = sorted(logits, reverse=True)
    allowed = [x for x in allowed if not 0 < top_k < len(logits) or x >= allowed[top_k - 1]]
    shares = [math.exp(x - allowed[0]) for x in allowed]
    least, total = 0, 0.0
    while least < len(shares) and total / sum(shares) < top_p - 1e-9:
        total, least = total + shares[least], least + 1
    most, total = 0, 0.0
    while most < len(shares) and total / sum(shares) < top_p + 1e-9:
        total, most = total + shares[most], most + 1
    ordered = sorted((logits[i] for i in kept), reverse=True)
    assert ordered == [x for x in allowed[: len(ordered)] if x > -math.inf]
    assert min(least, sum(x > -math.inf for x in allowed)) <= len(kept) <= most
