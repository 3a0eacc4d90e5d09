"""The share of measured advantages that is not chance."""

import torch
from torch import Tensor

from lgym.functional.inputs import at_least_float32, require_rank, require_same_shape


@torch.no_grad()
def split_half_reliability(advantages: Tensor, states: Tensor, actions: Tensor, halves: Tensor) -> Tensor:
    """The reliability of the mean advantages of actions, from two halves of the episodes.

    d_h(s, a) = mean_h A(s, a) - mean_h A(s);  r = corr(d_0, d_1);  ρ = 2 r / (1 + r), at least 0

    with the means over the turns of half h, and the correlation over the (s, a) that both halves have, about
    0 and with the weights n_0 n_1 / (n_0 + n_1). ρ is the reliability of both halves together: Spearman 1910
    and Brown 1910 (both British Journal of Psychology 3); Kelley 1927, "Interpretation of Educational
    Measurements", shrinks a measurement by it.

    Args:
        advantages: [turns].
        states: [turns] int64, a number per state, from 0.
        actions: [turns] int64, a number per action in its state, from 0.
        halves: [turns] int64, 0 or 1: of turns that came about independently of those of the other half.

    Returns:
        ρ from 0, all is chance, to 1; 1 where no two actions of a state were tried in both halves.

    Raises:
        ValueError: if the shapes differ.
    """
    require_rank(1, advantages=advantages)
    require_same_shape(advantages=advantages, states=states, actions=actions, halves=halves)
    advantages = at_least_float32(advantages)
    shape = 2, int(states.max()) + 1, int(actions.max()) + 1
    places = (halves * shape[1] + states) * shape[2] + actions
    zeros = advantages.new_zeros(shape).flatten()
    counts = zeros.index_add(0, places, torch.ones_like(advantages)).view(shape)
    sums = zeros.index_add(0, places, advantages).view(shape)
    state_means = sums.sum(2, keepdim=True) / counts.sum(2, keepdim=True).clamp(min=1)
    first, second = sums / counts.clamp(min=1) - state_means
    in_both = (counts > 0).all(0)
    comparable = in_both & (in_both.sum(1, keepdim=True) > 1)
    weights = comparable * counts.prod(0) / counts.sum(0).clamp(min=1)
    scale = ((weights * first.square()).sum() * (weights * second.square()).sum()).sqrt()
    if float(scale) == 0.0:
        return torch.ones_like(scale)
    correlation: Tensor = ((weights * first * second).sum() / scale).clamp(0.0, 1.0)
    return 2 * correlation / (1 + correlation)
