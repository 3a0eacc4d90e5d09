"""Advantage estimation with a critic: GAE over turns, or over the tokens that were chosen in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lgym import distributed
from lgym.functional import explained_variance, gae, value_offset, whiten
from lgym.models.value_head import ValueHead
from lgym.modules.response_batch import RolloutTurns
from lgym.rollout import Rollout

AdvantageLevel = Literal["turn", "token"]


@dataclass(frozen=True)
class Advantages:
    """The advantages of a rollout's turns, in the order of time."""

    advantages: Tensor  # [turns], or [turns, T] where tokens differ
    returns: Tensor | None = None  # likewise, the targets of values; of [turns], before each turn
    values: Tensor | None = None  # likewise, the values at rollout time
    metrics: Mapping[str, float] = field(default_factory=dict)
    idle: bool = False  # True if the rollout does not tell one action from another: there is nothing to learn


@dataclass(frozen=True)
class Timeline:
    """E streams of S steps each, in the order of time; a step is a turn or a token."""

    rewards: Tensor  # [E, S]
    values: Tensor  # [E, S] of the state before the step
    next_values: Tensor  # [E, S] of the state that it led to
    terminated: Tensor  # [E, S] bool
    truncated: Tensor  # [E, S] bool
    mask: Tensor  # [E, S] bool, 1 where there is a step
    ends_turn: Tensor | None = None  # [E, S] bool; `None` where every step does


def gae_advantages(
    turns: RolloutTurns,
    timeline: Timeline,
    *,
    gamma: float,
    gae_lambda: float,
    whiten_advantages: bool,
    value_head: ValueHead,
) -> Advantages:
    """GAE along a timeline, from values that are right on average: the discount counts turns, `gae_lambda`
    steps.

    Args:
        turns: the rollout's.
        timeline: its turns, or their tokens.
        gamma: discount per turn.
        gae_lambda: between one-step advantages (0) and whole returns (1).
        whiten_advantages: shift and scale them to mean 0 and standard deviation 1.
        value_head: its statistics follow the returns.

    Returns:
        [steps] advantages, returns and values. Where the rollout tells no action from another, advantages are
        0, and the value head's statistics stay.
    """
    ends_turn = timeline.mask if timeline.ends_turn is None else timeline.ends_turn
    discounts = gamma ** ends_turn.float()
    offset = _value_offset(timeline, discounts)
    level = offset * timeline.mask  # none where there is no step
    advantages, returns = gae(
        timeline.rewards,
        timeline.values + level,
        timeline.next_values + level,
        timeline.terminated,
        timeline.truncated,
        gamma=discounts,
        gae_lambda=gae_lambda,
    )
    advantages, returns, values = (x[timeline.mask] for x in (advantages, returns, timeline.values))
    all_returns = distributed.all_gather_cat(returns)
    variance = explained_variance(distributed.all_gather_cat(values), all_returns)
    idle = tells_nothing(turns.rollout)
    if idle:
        advantages = torch.zeros_like(advantages)
    else:
        value_head.update_statistics(all_returns)
        advantages = (
            distributed.apply_global(whiten, advantages)
            if whiten_advantages
            else advantages / float(value_head.std)
        )
    metrics = {"value/explained_variance": float(variance), "value/offset": offset}
    return Advantages(advantages, returns, values, metrics, idle)


def _value_offset(timeline: Timeline, discounts: Tensor) -> float:
    """The level by which the values of a timeline, of all processes, miss.

    Args:
        timeline: of E streams of S steps.
        discounts: [E, S] of what follows each step.
    """
    columns = (timeline.rewards, timeline.values, timeline.next_values, timeline.terminated, discounts)
    rewards, values, next_values, terminated, gamma = (
        distributed.all_gather_cat(column[timeline.mask]) for column in columns
    )
    horizon = max(distributed.all_gather_object(int(timeline.mask.sum(1).max())))
    offset = value_offset(rewards, values, next_values, terminated, gamma=gamma, horizon=horizon)
    return float(offset)


def turn_timeline(turns: RolloutTurns) -> Timeline:
    """A step per turn."""
    rollout = turns.rollout
    return Timeline(
        rewards=turns.rewards,
        values=rollout.values,
        next_values=rollout.next_values,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        mask=rollout.mask,
    )


def token_timeline(turns: RolloutTurns, values: Tensor, action_mask: Tensor) -> Timeline:
    """A step per token that the policy chose; other tokens take no time.

    Args:
        turns: of the rollout.
        values: [turns, T] of the state before each token, in the order of time.
        action_mask: [turns, T] bool, likewise; at least one in each turn.
    """
    by_turn = turn_timeline(turns)
    mask = by_turn.mask
    streams = mask.nonzero()[:, 0]
    turn, _ = action_mask.nonzero(as_tuple=True)  # [steps], stream by stream in the order of time
    stream = streams[turn]
    counts = torch.bincount(stream, minlength=len(mask))
    step = torch.arange(len(turn)) - (counts.cumsum(0) - counts)[stream]
    last = torch.ones_like(turn, dtype=torch.bool)
    last[:-1] = turn[1:] != turn[:-1]
    own_values = values[action_mask]
    following = torch.cat([own_values[1:], own_values.new_zeros(1)])

    def laid_out(steps: Tensor, fill: float | bool) -> Tensor:
        return steps.new_full((len(mask), int(counts.max())), fill).index_put((stream, step), steps)

    return Timeline(
        rewards=laid_out(by_turn.rewards[mask][turn] * last, 0.0),
        values=laid_out(own_values, 0.0),
        next_values=laid_out(torch.where(last, by_turn.next_values[mask][turn], following), 0.0),
        terminated=laid_out(by_turn.terminated[mask][turn] & last, True),
        truncated=laid_out(by_turn.truncated[mask][turn] & last, False),
        mask=laid_out(torch.ones_like(last), False),
        ends_turn=laid_out(last, False),
    )


def tells_nothing(rollout: Rollout) -> bool:
    """Check if nothing in a rollout, of all processes, tells one action from another: every reward is the
    same and no episode terminated. (A divergence that is subtracted from the rewards does not count, and is
    not learned from in such a rollout.)

    Advantages and targets of values are then the value's own errors. On the scale of 1, which normalization
    and Adam give them, these would drive the policy into some action or other, and one that is as good as it
    can be away.
    """
    if distributed.all_reduce_any(rollout.terminated[rollout.mask].any()):
        return False
    rewards = distributed.all_gather_cat(rollout.learned_rewards[rollout.mask])
    return bool((rewards == rewards[0]).all())
