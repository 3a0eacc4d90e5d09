"""Groups of episodes from one reset seed, which grouped estimators compare."""

import lightning as L
import torch

from lgym.modules.response_batch import RolloutTurns
from lgym.rollout import Prompt
from lgym.types import ConfigError

NO_GROUPS = "{} compares episodes from the same reset seed: set data.group_size to 2 or more."


def require_groups(trainer: L.Trainer, name: str) -> None:
    """Refuse data without groups, before a model is loaded."""
    if getattr(trainer.datamodule, "group_size", 2) < 2:  # type: ignore[attr-defined]
        raise ConfigError(NO_GROUPS.format(name))


def require_comparable(turns: RolloutTurns, name: str) -> None:
    """Refuse a rollout unless its groups have several episodes each, which began with the same
    observation."""
    rollout, groups = turns.rollout, turns.reset_seeds
    if len(groups) != len(rollout.episode_returns):
        raise ConfigError(
            f"{name} compares whole episodes: set data.episodes_per_rollout instead of "
            "data.turns_per_rollout."
        )
    if len(groups.unique()) == len(groups):
        raise ConfigError(NO_GROUPS.format(name))
    begins = torch.ones_like(turns.episode_index, dtype=torch.bool)
    begins[1:] = (
        turns.episode_index[1:] != turns.episode_index[:-1]
    )  # an episode's turns lie together, in their order
    numbers: dict[Prompt, int] = {}  # equal for equal prompts: a rollout may hold one twice
    prompt_numbers = torch.tensor(
        [numbers.setdefault(prompt, row) for row, prompt in enumerate(rollout.prompts)]
    )
    rows = prompt_numbers[rollout.prompt_index[rollout.mask]]
    first = torch.zeros_like(groups).index_copy(0, turns.episode_index[begins], rows[begins])
    beginnings = torch.stack([groups, first], dim=1).unique(dim=0)
    alike = beginnings[:-1, 0] == beginnings[1:, 0]
    if alike.any():
        pair = int(alike.nonzero()[0])
        one, other = (rollout.prompts[int(beginnings[i, 1])].observation_text for i in (pair, pair + 1))
        raise ConfigError(
            f"Two episodes that were reset with seed {int(beginnings[pair, 0])} began differently: {one!r} "
            f"and {other!r}. The environment does not honor its reset seed, so its episodes cannot be "
            "compared. Use PPO, or seed it."
        )


def zero_variance_groups(turns: RolloutTurns) -> float:
    """The share of groups whose episodes all have the same return, so that none has an advantage."""
    groups, members = turns.reset_seeds.unique(return_inverse=True)
    bounds = turns.episode_returns.new_zeros(2, len(groups))
    low = bounds[0].scatter_reduce(0, members, turns.episode_returns, "amin", include_self=False)
    high = bounds[1].scatter_reduce(0, members, turns.episode_returns, "amax", include_self=False)
    return float((low == high).float().mean())
