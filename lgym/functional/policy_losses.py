"""What moves the policy: towards what went better than foretold, away from what went worse."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lgym.functional.inputs import require_between, require_same_shape


def ppo_clip_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """PPO's clipped surrogate, negated to be minimised, one an entry.

    -min(ρ A, clip(ρ, 1 - clip_low, 1 + clip_high) A) with ρ = exp(logprobs - old_logprobs)

    "Proximal Policy Optimization Algorithms", Schulman et al. 2017, arXiv:1707.06347, equation 7, where both bounds
    are ε; apart in "DAPO", Yu et al. 2025, arXiv:2503.14476, section 3.1.
    Shapes: all [...], equal: turns or tokens. Returns [...].
    Before the first step ρ = 1: the loss is -A and its gradient that of -A log π. No gradient where ρ has already left
    the bounds in the direction that A asks for; it may always come back. clip_high = inf leaves that side open.
    Raises ValueError where the shapes differ, clip_low is outside [0, 1] or clip_high is below 0.
    """
    require_same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    require_between(0, 1, clip_low=clip_low)
    require_between(0, math.inf, clip_high=clip_high)
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)
