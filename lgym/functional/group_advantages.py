"""By how much an episode beat the others of its group, those from the same reset seed; or a turn those from its state.

There is no loop over groups: ten thousand cost what one does.
"""

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
    exactly 0: such a group teaches nothing. Squares of the returns have to fit the dtype: float32 holds those of 1e19.
    Raises ValueError where the shapes differ.
    """
    require_rank(1, returns=returns)
    require_same_shape(returns=returns, groups=groups)
    deviations, members, sizes = _deviations(at_least_float32(returns), groups)
    if not scale_by_std:
        return deviations
    stds = (_sums(deviations.square(), members, len(sizes)) / (sizes - 1).clamp(min=1)).sqrt() + eps
    return deviations / stds.masked_fill(stds == 0, 1.0)[members]


@torch.no_grad()
def leave_one_out_advantages(returns: Tensor, groups: Tensor) -> Tensor:
    """The return of each episode less the mean of the others in its group.

    A_i = R_i - Σ_{j ≠ i} R_j / (n - 1) = n / (n - 1) (R_i - mean_g R), in a group of n.

    "Buy 4 REINFORCE Samples, Get a Baseline for Free!", Kool et al. 2019, Deep Reinforcement Learning Meets Structured
    Prediction, ICLR workshop; RLOO of "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human
    Feedback in LLMs", Ahmadian et al. 2024, arXiv:2402.14740.
    Shapes: returns and groups [episodes], groups holding any number for each group. Returns [episodes], at least float32.
    The baseline does not depend on the episode's own return, so the policy gradient has no bias. Where all returns of a
    group are equal all are exactly 0; so it is for a group of one, which has nothing to be compared with.
    Raises ValueError where the shapes differ.
    """
    require_rank(1, returns=returns)
    require_same_shape(returns=returns, groups=groups)
    deviations, members, sizes = _deviations(at_least_float32(returns), groups)
    return deviations * sizes[members] / (sizes - 1).clamp(min=1)[members]


@torch.no_grad()
def state_advantages(
    returns_to_go: Tensor, states: Tensor, groups: Tensor, *, scale_by_std: bool, eps: float = 1e-4
) -> Tensor:
    """What was earned from each turn on, less the mean over the turns of its group that were in the same state.

    A_t = (R_t - mean_{g,s} R) / (std_{g,s} R + eps)        with scale_by_std
    A_t =  R_t - mean_{g,s} R                               without

    The step relative advantage of GiGPO: "Group-in-Group Policy Optimization for LLM Agent Training", Feng et al. 2025,
    arXiv:2505.10978, section 4.2, equation 7.
    Shapes: all [turns]; returns_to_go discounted, states and groups holding any whole number for each state and each
    group: the same state in two groups is two. Returns [turns], at least float32.
    A state that is met once in its group has 0, and so have turns whose returns are all equal: nothing is compared. An
    episode that comes back to a state is compared with itself too.
    Raises ValueError where the shapes differ.
    """
    require_rank(1, returns_to_go=returns_to_go)
    require_same_shape(returns_to_go=returns_to_go, states=states, groups=groups)
    known, numbers = states.unique(return_inverse=True)
    pairs = groups.unique(return_inverse=True)[1] * len(known) + numbers
    return group_advantages(returns_to_go, pairs, scale_by_std=scale_by_std, eps=eps)


def _deviations(returns: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each return less its group's mean [episodes], the place of its group in a list [episodes], and their sizes [groups].

    The mean is taken of the distances from the lowest return, so that equal returns have deviations of exactly 0,
    whatever the rounding of their mean.
    """
    _, members, counts = groups.unique(return_inverse=True, return_counts=True)
    sizes = counts.to(returns.dtype)
    lowest = returns.new_zeros(len(sizes)).scatter_reduce(0, members, returns, "amin", include_self=False)
    distances = returns - lowest[members]
    means = _sums(distances, members, len(sizes)) / sizes
    return distances - means[members], members, sizes


def _sums(x: Tensor, members: Tensor, count: int) -> Tensor:
    """The sum over each of `count` groups."""
    return x.new_zeros(count).index_add(0, members, x)
