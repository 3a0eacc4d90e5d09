"""Policy losses, unreduced: REINFORCE and PPO's clipped surrogate."""

import math

import torch
from torch import Tensor

from lgym.functional.inputs import require_between, require_same_shape


def policy_gradient_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Policy gradient loss (REINFORCE, A2C), per entry.

    -A log π, whose gradient is -A ∇ log π: advantages are taken as constants.

    "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning", Williams
    1992, Machine Learning 8 (REINFORCE); with a value as the baseline "Asynchronous Methods for Deep
    Reinforcement Learning", Mnih et al. 2016, arXiv:1602.01783, section 4.

    For the policy's own samples, once: the second step on the same samples follows the gradient of another
    policy. Only the gradient means anything; the loss itself need not fall.

    Args:
        logprobs: [...], of turns or tokens.
        advantages: [...].

    Returns:
        [...]; where A is 0 so are loss and gradient.

    Raises:
        ValueError: if the shapes differ.
    """
    require_same_shape(logprobs=logprobs, advantages=advantages)
    return -advantages.detach() * logprobs


def ppo_clip_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """PPO's clipped surrogate objective, negated to be minimized, per entry.

    -min(ρ A, clip(ρ, 1 - clip_low, 1 + clip_high) A) with ρ = exp(logprobs - old_logprobs)

    "Proximal Policy Optimization Algorithms", Schulman et al. 2017, arXiv:1707.06347, equation 7, where both
    bounds are ε; apart in "DAPO", Yu et al. 2025, arXiv:2503.14476, section 3.1.

    Before the first step ρ = 1: the loss is -A and its gradient that of -A log π. There is no gradient where
    ρ has already left the bounds in the direction that A asks for; it may always come back.

    Args:
        logprobs: [...], of turns or tokens under the current policy.
        old_logprobs: [...], under the behavior policy.
        advantages: [...].
        clip_low: the lower clip range, from 0 to 1.
        clip_high: the upper clip range, 0 or more; inf leaves that side open.

    Returns:
        [...].

    Raises:
        ValueError: if the shapes differ, clip_low is outside [0, 1] or clip_high is below 0.
    """
    require_same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    require_between(0, 1, clip_low=clip_low)
    require_between(0, math.inf, clip_high=clip_high)
    log_ratio = logprobs - old_logprobs
    # Where A >= 0 a ratio past its bound does not count; kept finite there, as 0 times the inf of exp would
    # be NaN.
    bounded = log_ratio.clamp(max=math.log(torch.finfo(log_ratio.dtype).max) - 1)
    ratio = torch.where(advantages < 0, log_ratio, bounded).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)
