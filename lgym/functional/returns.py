"""Discounted returns: to the end of an episode, or over so many turns."""

import torch
from torch import Tensor

from lgym.functional import inputs


@torch.no_grad()
def discounted_returns(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float
) -> Tensor:
    """Discounted returns-to-go, bootstrapped from the value where an episode was cut off.

    R_t = r_t + γ R_{t+1};  R_{t+1} is 0 where terminated_t, and next_v_t where truncated_t or t = N - 1.

    "Reinforcement Learning: An Introduction", Sutton & Barto 2018, equation 3.9; for the bootstrap "Time
    Limits in Reinforcement Learning", Pardo et al. 2018, arXiv:1712.00378.

    A turn that is both terminated and truncated is terminated. Where padding turns follow a row that was cut
    off, mark its last real turn truncated.

    Args:
        rewards: [B, N], time last; one row may hold several episodes in sequence.
        next_values: [B, N]; next_values[b, t] is the value of the observation that turn t led to. It is read
            only where an episode was cut off. Zeros mean no bootstrap.
        terminated: [B, N] of bool.
        truncated: [B, N] of bool.
        gamma: the discount, from 0 to 1.

    Returns:
        Returns-to-go, [B, N], without gradient; at least float32.

    Raises:
        ValueError: if the shapes differ, a flag is not bool, or gamma is outside [0, 1].
    """
    inputs.require_rank(2, rewards=rewards)
    inputs.require_same_shape(
        rewards=rewards, next_values=next_values, terminated=terminated, truncated=truncated
    )
    inputs.require_bool(terminated=terminated, truncated=truncated)
    inputs.require_between(0, 1, gamma=gamma)
    rewards, next_values = inputs.at_least_float32(rewards), inputs.at_least_float32(next_values)
    returns = torch.zeros_like(rewards + next_values)
    next_return = next_values[:, -1] if next_values.shape[1] else next_values.new_zeros(len(next_values))
    for t in reversed(range(rewards.shape[1])):
        next_return = torch.where(truncated[:, t], next_values[:, t], next_return)
        next_return = rewards[:, t] + gamma * next_return.masked_fill(terminated[:, t], 0.0)
        returns[:, t] = next_return
    return returns


@torch.no_grad()
def n_step_returns(
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    n: int,
    followed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Discounted rewards of the next n turns of an episode, and what is left of it to bootstrap from.

    R_t = Σ_k<m γ^k r_(t+k);  the return is R_t + d_t V(s_(t+m)),  d_t = γ^m, or 0 where terminated_(t+m-1)

    with m = n, or fewer where the episode ends before: by termination, by truncation, or at t = N - 1; and
    where a turn follows whose action is not the one that the values are of.

    "Reinforcement Learning: An Introduction", Sutton & Barto 2018, equation 7.1; for the cut before other
    actions section 12.10 (Watkins's Q(λ)).

    Args:
        rewards: [B, N], time last; one row may hold several episodes in sequence.
        terminated: [B, N] of bool.
        truncated: [B, N] of bool.
        gamma: the discount, from 0 to 1.
        n: number of turns, 1 or more.
        followed: [B, N] of bool, turns whose action was that of the policy that is valued; by default all.

    Returns:
        R [B, N], at least float32; the column t + m - 1 of the last turn in it [B, N] int64; and d [B, N].

    Raises:
        ValueError: if the shapes differ, a flag is not bool, gamma is outside [0, 1], or n is below 1.
    """
    inputs.require_rank(2, rewards=rewards)
    inputs.require_same_shape(rewards=rewards, terminated=terminated, truncated=truncated)
    followed = torch.ones_like(terminated) if followed is None else followed
    inputs.require_same_shape(rewards=rewards, followed=followed)
    inputs.require_bool(terminated=terminated, truncated=truncated, followed=followed)
    inputs.require_between(0, 1, gamma=gamma)
    if n < 1:
        raise ValueError(f"n must be 1 or more, got {n}")
    rewards = inputs.at_least_float32(rewards)
    width = rewards.shape[1]
    last = torch.arange(width, device=rewards.device).expand_as(terminated).clone()
    returns, discounts = rewards.clone(), torch.full_like(rewards, gamma)
    ended = terminated | truncated
    for _ in range(n - 1):
        following = (last + 1).clamp(max=max(width - 1, 0))
        goes_on = (last < width - 1) & ~ended.gather(1, last) & followed.gather(1, following)
        returns = torch.where(goes_on, returns + discounts * rewards.gather(1, following), returns)
        discounts = torch.where(goes_on, discounts * gamma, discounts)
        last = last + goes_on.long()
    return returns, last, discounts.masked_fill(terminated.gather(1, last), 0.0)
