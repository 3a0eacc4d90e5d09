"""Advantages relative to a group: of episodes from one reset seed, or of turns from one state.

There is no loop over groups: ten thousand cost what one does.
"""

import torch
from torch import Tensor

from lgym.functional.inputs import at_least_float32, require_rank, require_same_shape


@torch.no_grad()
def group_advantages(returns: Tensor, groups: Tensor, *, scale_by_std: bool, eps: float = 1e-4) -> Tensor:
    """Group-relative advantages (GRPO): each return minus its group's mean, over the group's standard
    deviation or not.

    A_i = (R_i - mean_g R) / (std_g R + eps)        with scale_by_std
    A_i =  R_i - mean_g R                           without

    "DeepSeekMath", Shao et al. 2024, arXiv:2402.03300, section 4.1.2; without the deviation, which favors
    groups that are nearly always right or wrong, "Understanding R1-Zero-Like Training", Liu et al. 2025,
    arXiv:2503.20783, section 3.1.

    The deviation is that of a sample (n - 1). Where all returns of a group are equal, and so for a group of
    one, all advantages are exactly 0: such a group teaches nothing.

    Args:
        returns: [episodes]. Their squares have to fit the dtype: float32 holds those of 1e19.
        groups: [episodes], any number per group.
        scale_by_std: divide by the group's standard deviation.
        eps: added to the standard deviation.

    Returns:
        Advantages, [episodes]; at least float32.

    Raises:
        ValueError: if the shapes differ.
    """
    deviations, group_index, sizes = _deviations(returns, groups)
    if not scale_by_std:
        return deviations
    stds = (_group_sums(deviations.square(), group_index, sizes) / (sizes - 1).clamp(min=1)).sqrt() + eps
    return deviations / stds.masked_fill(stds == 0, 1.0)[group_index]


@torch.no_grad()
def leave_one_out_advantages(returns: Tensor, groups: Tensor) -> Tensor:
    """Leave-one-out advantages (RLOO): each return minus the mean of the others in its group.

    A_i = R_i - Σ_{j ≠ i} R_j / (n - 1) = n / (n - 1) (R_i - mean_g R), in a group of n.

    "Buy 4 REINFORCE Samples, Get a Baseline for Free!", Kool et al. 2019, Deep Reinforcement Learning Meets
    Structured Prediction, ICLR workshop; RLOO of "Back to Basics: Revisiting REINFORCE Style Optimization for
    Learning from Human Feedback in LLMs", Ahmadian et al. 2024, arXiv:2402.14740.

    The baseline does not depend on the episode's own return, so the policy gradient has no bias. Where all
    returns of a group are equal all advantages are exactly 0, and so for a group of one, which has nothing to
    be compared with.

    Args:
        returns: [episodes].
        groups: [episodes], any number per group.

    Returns:
        Advantages, [episodes]; at least float32.

    Raises:
        ValueError: if the shapes differ.
    """
    deviations, group_index, sizes = _deviations(returns, groups)
    return deviations * sizes[group_index] / (sizes - 1).clamp(min=1)[group_index]


@torch.no_grad()
def state_advantages(
    returns_to_go: Tensor, states: Tensor, groups: Tensor, *, scale_by_std: bool, eps: float = 1e-4
) -> Tensor:
    """Step-relative advantages (GiGPO): each return-to-go minus the mean over its group's turns in the same
    state.

    A_t = (R_t - mean_{g,s} R) / (std_{g,s} R + eps)        with scale_by_std
    A_t =  R_t - mean_{g,s} R                               without

    "Group-in-Group Policy Optimization for LLM Agent Training", Feng et al. 2025, arXiv:2505.10978, section
    4.2, equation 7.

    A state that is met once in its group has advantage 0, and so have turns whose returns are all equal:
    nothing is compared. An episode that comes back to a state is compared with itself too.

    Args:
        returns_to_go: [turns], discounted.
        states: [turns], any whole number per state.
        groups: [turns], any whole number per group: the same state in two groups is two.
        scale_by_std: divide by the standard deviation.
        eps: added to the standard deviation.

    Returns:
        Advantages, [turns]; at least float32.

    Raises:
        ValueError: if the shapes differ.
    """
    require_rank(1, returns_to_go=returns_to_go)
    require_same_shape(returns_to_go=returns_to_go, states=states, groups=groups)
    distinct_states, state_index = states.unique(return_inverse=True)
    pairs = groups.unique(return_inverse=True)[1] * len(distinct_states) + state_index
    return group_advantages(returns_to_go, pairs, scale_by_std=scale_by_std, eps=eps)


def _deviations(returns: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each return minus its group's mean, [episodes], its group's index, [episodes], and the group sizes,
    [groups].

    The mean is taken of the distances from the lowest return, so that equal returns have deviations of
    exactly 0, whatever the rounding of their mean.
    """
    require_rank(1, returns=returns)
    require_same_shape(returns=returns, groups=groups)
    returns = at_least_float32(returns)
    _, group_index, counts = groups.unique(return_inverse=True, return_counts=True)
    sizes = counts.to(returns.dtype)
    lowest = returns.new_zeros(len(sizes)).scatter_reduce(0, group_index, returns, "amin", include_self=False)
    distances = returns - lowest[group_index]
    means = _group_sums(distances, group_index, sizes) / sizes
    return distances - means[group_index], group_index, sizes


def _group_sums(x: Tensor, group_index: Tensor, sizes: Tensor) -> Tensor:
    return x.new_zeros(len(sizes)).index_add(0, group_index, x)
