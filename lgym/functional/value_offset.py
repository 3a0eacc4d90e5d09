"""The level by which values miss the returns."""

import torch
from torch import Tensor

from lgym.functional import inputs
from lgym.functional.gae import td_errors


@torch.no_grad()
def value_offset(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    *,
    gamma: float | Tensor,
    horizon: int,
) -> Tensor:
    """The constant that, added to all values, makes the mean of their temporal-difference errors 0.

    δ_t = r_t + γ_t (1 - terminated_t) next_v_t - v_t
    c = Σ δ_t / max(Σ (1 - γ_t (1 - terminated_t)), N / horizon)

    Values that are learned lag behind those of a policy that gets better, all by about the same. Where little
    ends or is discounted, this level is many times the error of one turn, r̄ / (1 - γ) of a mean reward r̄, so
    that targets of GAE make up for it in many rollouts only, and the turns near the end of a rollout, whose
    advantages are sums of few errors, look worse than others. "Reward Centering", Naik et al. 2024,
    arXiv:2405.09999, learns the level apart from the values for the same reason.

    With values that are right on average c is 0; with values of 0 whose turns all terminate it is the mean
    reward.

    Args:
        rewards: [N], of steps of any order: turns, or the tokens of turns.
        values: [N], the state values before each step.
        next_values: [N], of the state that the step led to; not read where terminated.
        terminated: [N] of bool.
        gamma: one discount for all steps, or [N] with the discount of what follows each.
        horizon: steps that were seen in a row, at least 1: a level that would show after more of them only
            is not taken as known.

    Returns:
        0-d; at least float32.

    Raises:
        ValueError: if the shapes differ, terminated is not bool, a gamma that is a number is outside [0, 1],
            or horizon is below 1.
    """
    inputs.require_rank(1, rewards=rewards)
    inputs.require_same_shape(rewards=rewards, values=values, next_values=next_values, terminated=terminated)
    inputs.require_bool(terminated=terminated)
    if isinstance(gamma, Tensor):
        inputs.require_same_shape(rewards=rewards, gamma=gamma)
    else:
        inputs.require_between(0, 1, gamma=gamma)
    if horizon < 1:
        raise ValueError(f"horizon is {horizon}; it must be 1 step or more")
    rewards, values, next_values = (inputs.at_least_float32(x) for x in (rewards, values, next_values))
    errors = td_errors(rewards, values, next_values, terminated, gamma)
    shares = 1 - (torch.zeros_like(rewards) + gamma).masked_fill(terminated, 0.0)
    return errors.sum() / shares.sum().clamp(min=len(rewards) / horizon)
