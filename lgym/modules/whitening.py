"""Advantages on one scale, whatever the rewards are."""

from __future__ import annotations

import torch
from torch import Tensor

from lgym import ranks
from lgym.batch import Rollout
from lgym.functional import whiten


def whitened(rollout: Rollout, advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the rollout, of all processes.

    All are 0 where nothing tells one action from another: every reward is the same and no episode terminated. What is left
    of advantages then is the errors of the value, and on the scale of 1 they drive the policy into some action or other.
    """
    terminated = ranks.any_of(rollout.terminated[rollout.mask].any())
    rewards = ranks.joined(rollout.rewards[rollout.mask])
    if not terminated and bool((rewards == rewards[0]).all()):
        return torch.zeros_like(advantages)
    return ranks.jointly(whiten, advantages)
