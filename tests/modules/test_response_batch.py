"""Chains of prompts that a minibatch takes together: those that one conversation led through."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from helpers.prompts import make_prompt
from lgym.modules.response_batch import prompt_chains


def rollout(texts, prompt_index, episode_ids, mask=None):
    """A rollout over prompts of which one extends another if its text does."""
    index = torch.tensor(prompt_index)
    return SimpleNamespace(
        prompts=tuple(make_prompt(text) for text in texts),
        prompt_index=index,
        episode_ids=torch.tensor(episode_ids),
        mask=torch.ones_like(index, dtype=torch.bool) if mask is None else torch.tensor(mask),
    )


def test_prompts_that_extend_no_other_stay_alone():
    assert prompt_chains(rollout(["a", "b", "c"], [[2, 0], [0, 1]], [[0, 0], [1, 1]])) == ((0,), (1,), (2,))


def test_a_conversation_is_one_chain():
    texts = ["a", "ax", "axy", "b", "by"]
    chains = prompt_chains(rollout(texts, [[0, 1, 2], [3, 4, 0]], [[0, 0, 0], [1, 1, 2]]))
    assert chains == ((0, 1, 2), (3, 4))


def test_a_shared_first_prompt_belongs_to_one_conversation():
    """A group's first prompt is computed in each minibatch anyway; its episodes are not chained together by
    it."""
    texts = ["a", "ax", "ay", "axz"]
    chains = prompt_chains(rollout(texts, [[0, 1, 3], [0, 2, 2]], [[0, 0, 0], [1, 1, 1]]))
    assert chains == ((0, 1, 3), (2,))


def test_prompts_without_a_turn_are_left_out():
    assert prompt_chains(rollout(["a", "b"], [[0, 1]], [[0, 0]], [[True, False]])) == ((0,),)
