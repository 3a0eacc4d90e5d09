"""The time line that advantages are estimated along: of turns, or of the tokens that were chosen in them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lgym.batch import Rollout


@dataclass(frozen=True)
class Grid:
    """E streams of S steps each, in the order of time."""

    rewards: Tensor  # [E, S]
    values: Tensor  # [E, S] of the state before the step
    next_values: Tensor  # [E, S] of the state that it led to
    terminated: Tensor  # [E, S] bool
    truncated: Tensor  # [E, S] bool
    ends: Tensor  # [E, S] bool, whether a turn ends with the step
    real: Tensor  # [E, S] bool, whether there is a step


def turn_grid(rollout: Rollout, rewards: Tensor) -> Grid:
    """A step is a turn."""
    return Grid(
        rewards=rewards,
        values=rollout.values,
        next_values=rollout.next_values,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        ends=rollout.mask,
        real=rollout.mask,
    )


def token_grid(turns: Grid, values: Tensor, chosen: Tensor, mask: Tensor) -> Grid:
    """A step is a token that the policy chose; what it did not choose takes no time.

    Args:
        turns: the same by turns.
        values: [turns, T] of the state before each token.
        chosen: [turns, T] bool; at least one in each turn.
        mask: [E, N] bool, where the turns lie, row by row.
    """
    streams = mask.nonzero()[:, 0]
    turn, _ = chosen.nonzero(as_tuple=True)  # [steps], stream by stream in the order of time
    stream = streams[turn]
    counts = torch.bincount(stream, minlength=len(mask))
    at = torch.arange(len(turn)) - (counts.cumsum(0) - counts)[stream]
    last = torch.ones_like(turn, dtype=torch.bool)
    last[:-1] = turn[1:] != turn[:-1]
    own = values[chosen]
    following = torch.cat([own[1:], own.new_zeros(1)])

    def laid_out(steps: Tensor, fill: float | bool) -> Tensor:
        return steps.new_full((len(mask), int(counts.max())), fill).index_put((stream, at), steps)

    return Grid(
        rewards=laid_out(turns.rewards[mask][turn] * last, 0.0),
        values=laid_out(own, 0.0),
        next_values=laid_out(torch.where(last, turns.next_values[mask][turn], following), 0.0),
        terminated=laid_out(turns.terminated[mask][turn] & last, True),
        truncated=laid_out(turns.truncated[mask][turn] & last, False),
        ends=laid_out(last, False),
        real=laid_out(torch.ones_like(last), False),
    )
