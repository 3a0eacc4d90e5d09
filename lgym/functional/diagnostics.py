"""Diagnostics of a policy in training: explained variance, clip fraction, variance of returns, mutual
information."""

import math

import torch
from torch import Tensor

from lgym.functional.inputs import at_least_float32, require_between, require_same_shape
from lgym.functional.kl import categorical_entropy
from lgym.functional.masking import masked_deviations, masked_mean


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, weights: Tensor | None = None) -> Tensor:
    """Explained variance of the returns by the values: 1 is perfect, 0 no better than a constant, below 0
    worse.

    1 - Var[R - v] / Var[R], with weighted population variances.

    Args:
        values: [...], the predictions.
        returns: [...], the targets.
        weights: [...], the weight of each entry; `None` weighs all alike.

    Returns:
        0-d; at least float32. NaN where the returns that count do not vary: there is nothing to explain.

    Raises:
        ValueError: if the shapes differ.
    """
    mask = torch.ones_like(returns, dtype=torch.bool) if weights is None else weights
    require_same_shape(values=values, returns=returns, weights=mask)
    unexplained = masked_mean(masked_deviations(returns - values, mask).square(), mask)
    total = masked_mean(masked_deviations(returns, mask).square(), mask)
    return 1 - unexplained / total.masked_fill(total == 0, torch.nan)


@torch.no_grad()
def clip_fraction(logprobs: Tensor, old_logprobs: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Indicator of each ratio outside PPO's clip range, to be averaged by the caller.

    1 where ρ < 1 - clip_low or ρ > 1 + clip_high, else 0, with ρ = exp(logprobs - old_logprobs)

    All are 0 before the first step, where ρ = 1. Both sides count whatever the sign of the advantage, so some
    of these entries still have a gradient.

    Args:
        logprobs: [...], of the current policy.
        old_logprobs: [...], of the behavior policy.
        clip_low: the lower clip range, from 0 to 1.
        clip_high: the upper clip range, 0 or more.

    Returns:
        [...], in the dtype of logprobs.

    Raises:
        ValueError: if the shapes differ, clip_low is outside [0, 1] or clip_high is below 0.
    """
    require_same_shape(logprobs=logprobs, old_logprobs=old_logprobs)
    require_between(0, 1, clip_low=clip_low)
    require_between(0, math.inf, clip_high=clip_high)
    ratio = (logprobs - old_logprobs).exp()
    return ((ratio < 1 - clip_low) | (ratio > 1 + clip_high)).to(logprobs.dtype)


@torch.no_grad()
def variance_within_and_across(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Variance within groups and variance of the group means.

    E[Var[v | g]] and Var[E[v | g]], whose sum is Var[v] (the law of total variance), with population
    variances.

    "A Course in Probability", Weiss 2005, p. 385; for returns as a sign of collapse "RAGEN", Wang et al.
    2025, arXiv:2504.20073.

    A group of one entry, which cannot vary, is left out.

    Args:
        values: [n].
        groups: [n] of integers, the group of each value.

    Returns:
        Two 0-d tensors, within and across; at least float32. Both are NaN where no group has two entries.

    Raises:
        ValueError: if the shapes differ.
    """
    require_same_shape(values=values, groups=groups)
    values = at_least_float32(values)
    group_index, counts = groups.unique(return_inverse=True, return_counts=True)[1:]
    mask = counts[group_index] > 1
    means = (values.new_zeros(len(counts)).index_add(0, group_index, values) / counts)[group_index]
    deviations = (values - means, masked_deviations(means, mask))
    within, across = (masked_mean(x.square(), mask).masked_fill(~mask.any(), torch.nan) for x in deviations)
    return within, across


@torch.no_grad()
def action_information(logprobs: Tensor, actions: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Marginal action distribution of a policy, and the mutual information between states and actions.

    p(a) = Σ_s w_s π(a | s) / Σ w;  I(S; A) = H(p) - Σ_s w_s H(π(. | s)) / Σ w

    "Elements of Information Theory", Cover & Thomas 2006, section 2.4.

    Where every state has the same distribution I is 0 (up to rounding), and at most H(p).

    Args:
        logprobs: [U, C], normalized, -inf for what cannot be chosen.
        actions: [U, C] of int64, the action that each candidate is, from 0.
        weights: [U], the visits of each state.

    Returns:
        p, [A], and I, 0-d, in nats; at least float32.

    Raises:
        ValueError: if the shapes differ.
    """
    require_same_shape(logprobs=logprobs, actions=actions)
    logprobs = at_least_float32(logprobs)
    state_probs = weights.to(logprobs.dtype) / weights.sum()
    marginal = logprobs.new_zeros(int(actions.max()) + 1)
    marginal = marginal.index_add(0, actions.flatten(), (logprobs.exp() * state_probs[:, None]).flatten())
    conditional_entropy = (state_probs * categorical_entropy(logprobs)).sum()
    return marginal, categorical_entropy(marginal.log()) - conditional_entropy
