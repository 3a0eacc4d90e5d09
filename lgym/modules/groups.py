"""Episodes that started from the same reset seed: what grouped estimators compare."""

from __future__ import annotations

import lightning as L
import torch

from lgym.batch import Context, Rollout
from lgym.modules.tokens import Turns
from lgym.types import ConfigError

NO_GROUPS = "{} compares episodes from the same reset seed: set data.group_size to 2 or more."


def require_groups(trainer: L.Trainer, name: str) -> None:
    """Refuses, before a model is loaded, data without groups."""
    if getattr(trainer.datamodule, "group_size", 2) < 2:  # type: ignore[attr-defined]
        raise ConfigError(NO_GROUPS.format(name))


def require_comparable(rollout: Rollout, turns: Turns, name: str) -> None:
    """Whole episodes, more than one of a group, and the same first observation throughout it."""
    returns, groups = turns.returns, turns.groups
    if len(returns) != len(rollout.episode_returns):
        raise ConfigError(f"{name} compares whole episodes: set data.episodes_per_rollout instead of data.turns_per_rollout.")
    if len(groups.unique()) == len(groups):
        raise ConfigError(NO_GROUPS.format(name))
    begins = torch.ones_like(turns.episodes, dtype=torch.bool)
    begins[1:] = turns.episodes[1:] != turns.episodes[:-1]  # an episode's turns lie together, in their order
    numbers: dict[Context, int] = {}  # by what is asked: a rollout may hold it twice
    asked = torch.tensor([numbers.setdefault(context, row) for row, context in enumerate(rollout.contexts)])
    rows = asked[rollout.context_ids[rollout.mask]]
    first = torch.zeros_like(groups).index_copy(0, turns.episodes[begins], rows[begins])
    seen = torch.stack([groups, first], dim=1).unique(dim=0)
    alike = seen[:-1, 0] == seen[1:, 0]
    if alike.any():
        at = int(alike.nonzero()[0])
        one, other = (rollout.contexts[int(seen[i, 1])].observation_text for i in (at, at + 1))
        raise ConfigError(
            f"Two episodes that were reset with seed {int(seen[at, 0])} began differently: {one!r} and {other!r}. The "
            f"environment does not honour its reset seed, so its episodes cannot be compared. Use TextPPO, or seed it."
        )


def groups_without_signal(turns: Turns) -> float:
    """The share of groups whose episodes all have the same return."""
    groups, members = turns.groups.unique(return_inverse=True)
    ends = turns.returns.new_zeros(2, len(groups))
    low = ends[0].scatter_reduce(0, members, turns.returns, "amin", include_self=False)
    high = ends[1].scatter_reduce(0, members, turns.returns, "amax", include_self=False)
    return float((low == high).float().mean())
