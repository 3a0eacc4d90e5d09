"""Numbers to look at while a policy trains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lgym.functional.inputs import require_between, require_same_shape
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
