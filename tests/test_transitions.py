"""Transitions in minibatches."""

from __future__ import annotations

import torch

from helpers import tiny
from lgym.rollout import Prompt
from lgym.transitions import TransitionBatch


def prompt(number: int) -> Prompt:
    return Prompt((60 + number,), ((97,), (98,)), ("a", "b"), f"state {number}")


def batch() -> TransitionBatch:
    """0 -> 1 -> 2 -> end, and 0 again."""
    return TransitionBatch(
        prompts=tuple(map(prompt, range(4))),  # the last is nobody's
        prompt_index=torch.tensor([0, 1, 2, 0]),
        choices=torch.tensor([0, 1, 0, 1]),
        rewards=torch.tensor([0.0, 1.0, 2.0, 3.0]),
        next_prompt_index=torch.tensor([1, 2, -1, 2]),
        discounts=torch.tensor([0.9, 0.9, 0.0, 0.9]),
        next_values=torch.zeros(4),
    )


def test_selection_keeps_the_prompts_that_it_needs():
    part = batch().select(torch.tensor([2, 3]))
    assert part.prompts == (prompt(0), prompt(2))
    assert part.prompt_index.tolist() == [1, 0]
    assert part.next_prompt_index.tolist() == [-1, 1]
    assert part.rewards.tolist() == [2.0, 3.0]


def test_a_pass_takes_each_prompt_once_with_all_that_was_chosen_there():
    first, second = batch().minibatches(2, [2, 0, 1])
    assert sorted(first.rewards.tolist()) == [0.0, 2.0, 3.0]  # of prompts 2 and 0
    assert second.rewards.tolist() == [1.0]
    assert batch().num_units == 3
    assert first.num_units == 2


def test_a_record_is_what_happened():
    first = next(iter(batch().records(tiny.tokenizer())))
    assert first["choice"] == "a"
    assert first["next_prompt"] == tiny.tokenizer().decode([61])
    assert first["reward"] == 0.0
    assert list(batch().records(tiny.tokenizer()))[2]["next_prompt"] is None
