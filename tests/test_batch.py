"""Which contexts a minibatch takes together: those that one conversation led through."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from lgym.modules.bundles import bundles_of

from helpers.replies import reply_batch
from lgym.batch import Context


def contexts(*texts):
    return tuple(Context(tuple(text.encode()), (), (), text) for text in texts)


def rollout(texts, ids, episodes, mask=None):
    ids = torch.tensor(ids)
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else torch.tensor(mask)
    return SimpleNamespace(contexts=contexts(*texts), context_ids=ids, episode_ids=torch.tensor(episodes), mask=mask)


def test_contexts_are_equal_by_what_they_ask():
    """Not by who made them: a dict finds a question that was forgotten and made anew. Other tokens, or other candidates, are
    another question; how the observation reads is not asked."""
    one = Context((1, 2), ((3,),), ("a",), "here")
    assert {one: 1}[Context((1, 2), ((3,),), ("a",), "HERE", shortened=True)] == 1
    for other in (((1,), ((3,),), ("a",)), ((1, 2), ((4,),), ("a",)), ((1, 2), ((3,),), ("b",)), ((1, 2), (), ())):
        assert Context(*other, "here") != one
        assert Context(*other, "here") not in {one: 1}
    assert one != "here"


def test_prompts_that_do_not_go_on_stay_alone():
    assert bundles_of(rollout(["a", "b", "c"], [[2, 0], [0, 1]], [[0, 0], [1, 1]])) == ((0,), (1,), (2,))


def test_a_conversation_is_one_bundle():
    texts = ["a", "ax", "axy", "b", "by"]
    assert bundles_of(rollout(texts, [[0, 1, 2], [3, 4, 0]], [[0, 0, 0], [1, 1, 2]])) == ((0, 1, 2), (3, 4))


def test_a_shared_opening_belongs_to_one_of_its_conversations():
    """A group's first prompt is computed in each minibatch anyway; its episodes are not chained together by it."""
    texts = ["a", "ax", "ay", "axz"]
    assert bundles_of(rollout(texts, [[0, 1, 3], [0, 2, 2]], [[0, 0, 0], [1, 1, 1]])) == ((0, 1, 3), (2,))


def test_what_was_not_acted_on_is_left_out():
    assert bundles_of(rollout(["a", "b"], [[0, 1]], [[0, 0]], [[True, False]])) == ((0,),)


def test_minibatches_of_turns_hold_each_turn_once():
    batch = reply_batch(contexts("a", "b", "c"), [0, 0, 1, 2, 2], [(1,), (2, 3), (4,), (5,), (6, 7, 8)])
    parts = list(batch.minibatches(2, [2, 0, 1]))
    assert [part.replies for part in parts] == [((5,), (6, 7, 8)), ((1,), (2, 3)), ((4,),)]
    assert [[c.observation_text for c in part.contexts] for part in parts] == [["c"], ["a"], ["b"]]
    assert [part.mask.shape[1] for part in parts] == [3, 2, 1]
    assert [part.scale for part in parts] == pytest.approx([3 / 5] * 3)


def test_what_several_turns_said_is_one_reply_of_a_minibatch():
    """At "a" (1,) twice and (2,); at "b" (1,) twice: three distinct replies, two at a time, each with all its turns."""
    batch = reply_batch(contexts("a", "b"), [0, 0, 0, 1, 1], [(1,), (2,), (1,), (1,), (1,)])
    parts = list(batch.minibatches(2, [0, 1]))
    assert [part.replies for part in parts] == [((1,), (1,), (2,)), ((1,), (1,))]
    assert [part.scale for part in parts] == pytest.approx([2 / 5] * 2)


def test_distinct_replies_are_those_of_a_context():
    """Choices count too: a policy that thinks may say the same before two of them."""
    said = [(1,), (2, 3), (1,), (1,), (1,)]
    batch = reply_batch(contexts("a", "b"), [0, 0, 0, 1, 1], said, choices=[0, 0, 0, 0, 1])
    distinct, which = batch.distinct()
    assert which.tolist() == [0, 1, 0, 2, 3]
    assert distinct.replies == ((1,), (2, 3), (1,), (1,))
    assert distinct.rows.tolist() == [0, 0, 1, 1]
    assert distinct.choices.tolist() == [0, 0, 0, 1]


def test_minibatches_are_filled_to_about_as_many_turns():
    """Under gradient clipping a minibatch of few turns counted as much as one of many: weights went from 0.11 to 2.5. Here
    each has two prompts: 8 + 1, 4 + 2 and 3 + 2 turns, and no other shares are as even, in this order."""
    counts = [8, 4, 3, 2, 2, 1]
    rows = [row for row, count in enumerate(counts) for _ in range(count)]
    asked = contexts("a", "b", "c", "d", "e", "f")
    batch = replace(reply_batch(asked, rows, [(1,)] * len(rows)), by_reply=False)
    parts = [sorted(batch.rows[part].unique().tolist()) for part in batch.parts(2, range(6))]
    assert parts == [[0, 5], [1, 4], [2, 3]]
    assert [len(part) for part in batch.parts(2, range(6))] == [9, 6, 5]
    assert sorted(turn for part in batch.parts(4, [5, 3, 1, 0, 2, 4]) for turn in part.tolist()) == list(range(20))
