"""Value losses, unreduced. The half belongs to the loss, so that its gradient is the plain error."""

import math

import torch
from torch import Tensor

from lgym.functional.inputs import require_between, require_same_shape


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Half the squared error of the values, per entry.

    (v - R)² / 2

    "Proximal Policy Optimization Algorithms", Schulman et al. 2017, arXiv:1707.06347, equation 9, there
    without the half.

    Args:
        values: [...].
        returns: [...], the targets.

    Returns:
        [...]; 0 where the value is right.

    Raises:
        ValueError: if the shapes differ.
    """
    require_same_shape(values=values, returns=returns)
    return (values - returns).square() / 2


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Half the squared error, without a gain from moving further than `clip` from the old value, per entry.

    max((v - R)², (old_v + clip(v - old_v, -clip, clip) - R)²) / 2

    "Implementation Matters in Deep Policy Gradients", Engstrom et al. 2020, arXiv:2005.12729, section 3.

    With clip = inf this is `value_loss`; where v has not moved the two agree in value and gradient.

    Args:
        values: [...].
        old_values: [...], the values at rollout time.
        returns: [...], the targets.
        clip: the clip range in the units of the return, so it depends on the scale of the rewards.

    Returns:
        [...].

    Raises:
        ValueError: if the shapes differ or clip is below 0.
    """
    require_same_shape(values=values, old_values=old_values, returns=returns)
    require_between(0, math.inf, clip=clip)
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(value_loss(values, returns), value_loss(clipped, returns))
