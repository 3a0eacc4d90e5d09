"""Episodes that go in circles."""

import torch
from torch import Tensor

from lgym.rollout import Rollout


def looping_episodes(rollout: Rollout) -> Tensor:
    """[episodes] bool, by their numbers: 1 where the environment truncated an episode whose second half led
    to no observation that was new in it."""
    assert rollout.first_visits is not None
    mask = rollout.mask
    ids, episode = rollout.episode_ids[mask].unique(return_inverse=True)
    place = torch.arange(len(episode))  # an episode's turns lie together, in their order
    first = place.new_full((len(ids),), len(episode)).scatter_reduce(0, episode, place, "amin")
    turn = place - first[episode] + 1
    new = turn * (rollout.first_visits[mask] != 0)
    last_new = turn.new_zeros(len(ids)).scatter_reduce(0, episode, new, "amax")
    truncated = turn.new_zeros(len(ids)).index_add(
        0, episode, (rollout.truncated & ~rollout.cut)[mask].long()
    )
    return (truncated > 0) & (2 * last_new <= episode.bincount())
