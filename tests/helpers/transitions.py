"""Transitions made by hand."""

from __future__ import annotations

import torch

from lgym.rollout import Prompt
from lgym.transitions import TransitionBatch


def chain(first: int, count: int) -> TransitionBatch:
    """Transitions between the states first, first + 1, ..., the last of which ends; rewards are their numbers."""
    prompts = tuple(
        Prompt((60 + n,), ((97,), (98, 99)), ("a", "bc"), f"state {n}") for n in range(first, first + count)
    )
    index = torch.arange(count)
    return TransitionBatch(
        prompts=prompts,
        prompt_index=index,
        choices=index % 2,
        rewards=(index + first).float(),
        next_prompt_index=torch.where(index + 1 < count, index + 1, -1),
        discounts=torch.where(index + 1 < count, 0.9, 0.0),
        next_values=torch.zeros(count),
    )
