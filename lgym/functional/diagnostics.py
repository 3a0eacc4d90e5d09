"""Numbers to look at while a policy trains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lgym.functional.inputs import at_least_float32, require_between, require_same_shape
from lgym.functional.kl import categorical_entropy
from lgym.functional.masking import masked_deviations, masked_mean


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, weights: Tensor | None = None) -> Tensor:
    """How much of the returns' variance the values foretell: 1 all, 0 no more than a constant, below 0 worse than that.

    1 - Var[R - v] / Var[R], with weighted population variances.

    Shapes: all [...], equal; no weights means that every entry counts. Returns a 0-d tensor; at least float32.
    NaN where the returns that count do not vary (one entry, none, or all equal): there is nothing to explain.
    Raises ValueError where the shapes differ.
    """
    mask = torch.ones_like(returns, dtype=torch.bool) if weights is None else weights
    require_same_shape(values=values, returns=returns, weights=mask)
    unexplained = masked_mean(masked_deviations(returns - values, mask).square(), mask)
    total = masked_mean(masked_deviations(returns, mask).square(), mask)
    return 1 - unexplained / total.masked_fill(total == 0, torch.nan)


@torch.no_grad()
def clip_fraction(logprobs: Tensor, old_logprobs: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Whether each entry's ratio has left PPO's bounds, to be averaged by the caller.

    1 where ρ < 1 - clip_low or ρ > 1 + clip_high, else 0, with ρ = exp(logprobs - old_logprobs)

    Shapes: both [...], equal. Returns [...], in the dtype of logprobs. All 0 before the first step, where ρ = 1.
    Counts both sides whatever the sign of the advantage, so some of these entries still have a gradient.
    Raises ValueError where the shapes differ, clip_low is outside [0, 1] or clip_high is below 0.
    """
    require_same_shape(logprobs=logprobs, old_logprobs=old_logprobs)
    require_between(0, 1, clip_low=clip_low)
    require_between(0, math.inf, clip_high=clip_high)
    ratio = (logprobs - old_logprobs).exp()
    return ((ratio < 1 - clip_low) | (ratio > 1 + clip_high)).to(logprobs.dtype)


@torch.no_grad()
def variance_within_and_across(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """How much values vary within a group, and how much the groups' means do.

    E[Var[v | g]] and Var[E[v | g]], whose sum is Var[v] (the law of total variance), with population variances.

    "A Course in Probability", Weiss 2005, p. 385; of returns as a sign of collapse "RAGEN", Wang et al. 2025,
    arXiv:2504.20073.
    Shapes: values and groups [n], groups of any integers. Returns two 0-d tensors; at least float32.
    A group of one entry, which cannot vary, is left out. Where no group has two entries, both are NaN.
    Raises ValueError where the shapes differ.
    """
    require_same_shape(values=values, groups=groups)
    values = at_least_float32(values)
    which, counts = groups.unique(return_inverse=True, return_counts=True)[1:]
    kept = counts[which] > 1
    sums = values.new_zeros(len(counts)).index_add(0, which, values)
    own = values - (sums / counts)[which]
    across = masked_deviations((sums / counts)[which], kept)
    nothing = ~kept.any()
    return (
        masked_mean(own.square(), kept).masked_fill(nothing, torch.nan),
        masked_mean(across.square(), kept).masked_fill(nothing, torch.nan),
    )


@torch.no_grad()
def action_information(logprobs: Tensor, actions: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The policy averaged over states, and how much an action tells of the state that it was taken in.

    p(a) = Σ_s w_s π(a | s) / Σ w;  I(S; A) = H(p) - Σ_s w_s H(π(. | s)) / Σ w

    "Elements of Information Theory", Cover & Thomas 2006, section 2.4.
    Shapes: logprobs [U, C], normalised, -inf for what cannot be chosen; actions [U, C] int64, which action each candidate
    is, from 0; weights [U], how often each state was met. Returns p [A] and a 0-d tensor in nats; at least float32.
    Where every state has the same distribution I is 0 (up to rounding), and at most H(p).
    Raises ValueError where the shapes differ.
    """
    require_same_shape(logprobs=logprobs, actions=actions)
    logprobs = at_least_float32(logprobs)
    share = weights.to(logprobs.dtype) / weights.sum()
    mean = logprobs.new_zeros(int(actions.max()) + 1)
    mean = mean.index_add(0, actions.flatten(), (logprobs.exp() * share[:, None]).flatten())
    return mean, categorical_entropy(mean.log()) - (share * categorical_entropy(logprobs)).sum()
