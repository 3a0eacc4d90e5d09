"""Policy losses, unreduced: the surrogate of the policy gradient, and PPO's clipped one."""

import math

import torch
from torch import Tensor

from lgym.functional.inputs import require_between, require_same_shape


def surrogate_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """The surrogate objective, negated to be minimized, per entry: the policy gradient of REINFORCE and A2C,
    for more than one step on the same samples.

    -ρ A with ρ = exp(logprobs - old_logprobs)

    "Trust Region Policy Optimization", Schulman et al. 2015, arXiv:1502.05477, equation 14 without the
    constraint; L^CPI in "Proximal Policy Optimization Algorithms", 2017, arXiv:1707.06347, equation 6.

    Before the first step ρ = 1, and the gradient is that of -A log π ("Simple Statistical Gradient-Following
    Algorithms for Connectionist Reinforcement Learning", Williams 1992, Machine Learning 8). Later it is that
    of the expected advantage under π: it fades where an action is hardly ever taken, and that of
    -A log π does not.

    Args:
        logprobs: [...], of turns or tokens under the current policy.
        old_logprobs: [...], under the behavior policy.
        advantages: [...], taken as constants.

    Returns:
        [...]; where A is 0 so are loss and gradient.

    Raises:
        ValueError: if the shapes differ.
    """
    require_same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    return -_ratio(logprobs, old_logprobs, advantages) * advantages.detach()


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
    ratio = _ratio(logprobs, old_logprobs, advantages)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def _ratio(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """ρ, kept finite where A >= 0: an advantage of 0 times the inf of exp would be NaN."""
    log_ratio = logprobs - old_logprobs
    bounded = log_ratio.clamp(max=math.log(torch.finfo(log_ratio.dtype).max) - 1)
    return torch.where(advantages < 0, log_ratio, bounded).exp()
