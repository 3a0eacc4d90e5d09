"""What was earned from each turn on."""

from __future__ import annotations

import torch
from torch import Tensor

from lgym.functional.inputs import at_least_float32, require_between, require_bool, require_rank, require_same_shape


@torch.no_grad()
def discounted_returns(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float
) -> Tensor:
    """The discounted sum of the rewards from each turn on, with the value's estimate of what was cut off.

    R_t = r_t + γ R_{t+1};  R_{t+1} is 0 where terminated_t, and next_v_t where truncated_t or t = N - 1.

    "Reinforcement Learning: An Introduction", Sutton & Barto 2018, equation 3.9; for the bootstrap "Time Limits in
    Reinforcement Learning", Pardo et al. 2018, arXiv:1712.00378.
    Shapes: all [B, N], time last; one row may hold several episodes, one after the other. next_values[b, t] is the
    value of the observation that turn t led to; read only where an episode was cut off. Zeros there mean no bootstrap.
    Returns [B, N], without gradient; at least float32.
    Where a turn is both terminated and truncated, it is terminated. Where padding turns follow a row that was cut off,
    mark its last real turn truncated.
    Raises ValueError where the shapes differ, a flag is not bool, or gamma is outside [0, 1].
    """
    require_rank(2, rewards=rewards)
    require_same_shape(rewards=rewards, next_values=next_values, terminated=terminated, truncated=truncated)
    require_bool(terminated=terminated, truncated=truncated)
    require_between(0, 1, gamma=gamma)
    rewards, next_values = at_least_float32(rewards), at_least_float32(next_values)
    returns = torch.zeros_like(rewards + next_values)
    later = next_values[:, -1] if next_values.shape[1] else next_values.new_zeros(len(next_values))
    for t in reversed(range(rewards.shape[1])):
        later = torch.where(truncated[:, t], next_values[:, t], later)
        later = rewards[:, t] + gamma * later.masked_fill(terminated[:, t], 0.0)
        returns[:, t] = later
    return returns
