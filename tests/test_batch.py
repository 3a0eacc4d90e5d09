"""Minibatches of a `ResponseBatch`: each turn once per pass, equal responses together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.prompts import make_prompt, response_batch
from lgym.batch import ResponseBatch
from lgym.rollout import Response


def make_batch(prompt_index, response_ids, choices=None) -> ResponseBatch:
    prompts = [make_prompt(text) for text in "abcdef"[: max(prompt_index) + 1]]
    choices = choices or [-1] * len(response_ids)
    responses = [
        Response(ids, (0.0,) * len(ids), True, choice=choice)
        for ids, choice in zip(response_ids, choices, strict=True)
    ]
    return response_batch(prompts, prompt_index, responses)


def test_minibatches_of_turns_hold_each_turn_once():
    batch = make_batch([0, 0, 1, 2, 2], [(1,), (2, 3), (4,), (5,), (6, 7, 8)])
    minibatches = list(batch.minibatches(2, [2, 0, 1]))
    assert [part.response_ids for part in minibatches] == [((5,), (6, 7, 8)), ((1,), (2, 3)), ((4,),)]
    assert [[prompt.observation_text for prompt in part.prompts] for part in minibatches] == [
        ["c"],
        ["a"],
        ["b"],
    ]
    assert [part.action_mask.shape[1] for part in minibatches] == [3, 2, 1]
    assert [part.loss_scale for part in minibatches] == pytest.approx([3 / 5] * 3)


def test_equal_responses_to_a_prompt_count_once():
    """To "a" (1,) twice and (2,), to "b" (1,) twice: three distinct responses, two at a time, each with all
    its turns."""
    batch = make_batch([0, 0, 0, 1, 1], [(1,), (2,), (1,), (1,), (1,)])
    minibatches = list(batch.minibatches(2, [0, 1]))
    assert [part.response_ids for part in minibatches] == [((1,), (1,), (2,)), ((1,), (1,))]
    assert [part.loss_scale for part in minibatches] == pytest.approx([2 / 5] * 2)


def test_distinct_responses_differ_in_prompt_tokens_or_choice():
    """A policy that thinks may write the same before two choices."""
    batch = make_batch([0, 0, 0, 1, 1], [(1,), (2, 3), (1,), (1,), (1,)], choices=[0, 0, 0, 0, 1])
    distinct, rows = batch.distinct()
    assert rows.tolist() == [0, 1, 0, 2, 3]
    assert distinct.response_ids == ((1,), (2, 3), (1,), (1,))
    assert distinct.prompt_index.tolist() == [0, 0, 1, 1]
    assert distinct.choices.tolist() == [0, 0, 0, 1]


def test_minibatches_of_prompts_have_about_equally_many_turns():
    """Under gradient clipping a minibatch of few turns counted as much as one of many: weights went from 0.11
    to 2.5. Here each has two prompts: 8 + 1, 4 + 2 and 3 + 2 turns, and no other split is as even, in this
    order."""
    counts = [8, 4, 3, 2, 2, 1]
    prompt_index = [prompt for prompt, count in enumerate(counts) for _ in range(count)]
    batch = replace(make_batch(prompt_index, [(1,)] * len(prompt_index)), by_prompt=True)
    parts = batch.split(2, range(6))
    assert [sorted(batch.prompt_index[part].unique().tolist()) for part in parts] == [[0, 5], [1, 4], [2, 3]]
    assert [len(part) for part in parts] == [9, 6, 5]
    assert sorted(turn for part in batch.split(4, [5, 3, 1, 0, 2, 4]) for turn in part.tolist()) == list(
        range(20)
    )
