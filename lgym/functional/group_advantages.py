"""By how much an episode beat the others of its group: those that started from the same reset seed."""

from __future__ import annotations

import torch
from torch import Tensor

from lgym.functional.inputs import at_least_float32, require_rank, require_same_shape


@torch.no_grad()
def group_advantages(returns: Tensor, groups: Tensor, *, scale_by_std: bool, eps: float = 1e-4) -> Tensor:
    """The return of each episode less the mean of its group, by the group's standard deviation or not.

    A_i = (R_i - mean_g R) / (std_g R + eps)        with scale_by_std
    A_i =  R_i - mean_g R                           without

    "DeepSeekMath", Shao et al. 2024, arXiv:2402.03300, section 4.1.2; without the deviation, which favours groups that are
    nearly always right or wrong, "Understanding R1-Zero-Like Training", Liu et al. 2025, arXiv:2503.20783, section 3.1.
    Shapes: returns and groups [episodes], groups holding any number for each group. Returns [episodes], at least float32.
    The deviation is that of a sample (n - 1). Where all returns of a group are equal, and so for a group of one, all are
    exactly 0: such a group teaches nothing.
    Raises ValueError where the shapes differ.
    """
    require_rank(1, returns=returns)
    require_same_shape(returns=returns, groups=groups)
    returns = at_least_float32(returns)
    advantages = torch.zeros_like(returns)
    for group in groups.unique():
        members = groups == group
        own = returns[members]
        if len(own) == 1 or bool((own == own[0]).all()):
            continue
        deviations = own - own.mean()
        advantages[members] = deviations / (own.std() + eps) if scale_by_std else deviations
    return advantages
