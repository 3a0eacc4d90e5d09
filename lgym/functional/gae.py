"""Generalized advantage estimation."""

import torch
from torch import Tensor

from lgym.functional import inputs


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float | Tensor,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (GAE-λ) with separate termination and truncation.

    δ_t = r_t + γ_t (1 - terminated_t) next_v_t - v_t
    A_t = δ_t + γ_t λ (1 - (terminated_t or truncated_t)) A_{t+1},  A_N = 0
    R_t = A_t + v_t

    "High-Dimensional Continuous Control Using Generalized Advantage Estimation", Schulman et al. 2016,
    arXiv:1506.02438, equation 16; for truncation "Time Limits in Reinforcement Learning", Pardo et al. 2018,
    arXiv:1712.00378; for a discount per transition "Unifying Task Specification in Reinforcement Learning",
    White 2017, arXiv:1609.01995.

    With λ = 0 A_t is δ_t; with λ = 1 R_t is the discounted return. A turn that is both terminated and
    truncated is terminated. Padding turns, all zeros, add nothing to the turns before them.

    Args:
        rewards: [B, N], time last; one row may hold several episodes in sequence.
        values: [B, N], the state values before each turn.
        next_values: [B, N]; next_values[b, t] is the value of the observation that turn t led to: for a
            truncated turn the true last observation, not the first of the next episode. It is not read where
            terminated.
        terminated: [B, N] of bool.
        truncated: [B, N] of bool.
        gamma: one discount for all turns, or [B, N] with the discount of what follows each. Where entries are
            tokens, 1 within a turn and γ at its last token count the discount in turns, though λ still counts
            every token.
        gae_lambda: λ, from 0 to 1.

    Returns:
        Advantages and returns, each [B, N], without gradient; at least float32.

    Raises:
        ValueError: if the shapes differ, a flag is not bool, or gamma or gae_lambda is outside [0, 1]; the
            entries of a tensor are not read to check them.
    """
    inputs.require_rank(2, rewards=rewards)
    inputs.require_same_shape(
        rewards=rewards, values=values, next_values=next_values, terminated=terminated, truncated=truncated
    )
    inputs.require_bool(terminated=terminated, truncated=truncated)
    inputs.require_between(0, 1, gae_lambda=gae_lambda)
    if isinstance(gamma, Tensor):
        inputs.require_same_shape(rewards=rewards, gamma=gamma)
        gamma = inputs.at_least_float32(gamma)
    else:
        inputs.require_between(0, 1, gamma=gamma)
    rewards, values, next_values = (inputs.at_least_float32(x) for x in (rewards, values, next_values))
    deltas = td_errors(rewards, values, next_values, terminated, gamma)
    decays = (torch.zeros_like(deltas) + gamma * gae_lambda).masked_fill(terminated | truncated, 0.0)
    advantages = torch.zeros_like(deltas)
    next_advantage = deltas.new_zeros(len(deltas))
    for t in reversed(range(deltas.shape[1])):
        next_advantage = deltas[:, t] + decays[:, t] * next_advantage
        advantages[:, t] = next_advantage
    return advantages, advantages + values


def td_errors(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, gamma: float | Tensor
) -> Tensor:
    """Temporal-difference errors, δ_t = r_t + γ_t (1 - terminated_t) next_v_t - v_t, of any shape."""
    return rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
