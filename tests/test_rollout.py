"""Prompts as keys of a table."""

from __future__ import annotations

import pytest

from lgym.rollout import Prompt

PROMPT = Prompt((1, 2), ((3,),), ("a",), "here")


def test_equal_prompts_are_one_key():
    """A prompt that was forgotten and rendered again finds its entry; how the observation reads does not
    count."""
    assert {PROMPT: 1}[Prompt((1, 2), ((3,),), ("a",), "HERE", shortened=True)] == 1


@pytest.mark.parametrize(
    ("token_ids", "candidate_ids", "candidates"),
    [((1,), ((3,),), ("a",)), ((1, 2), ((4,),), ("a",)), ((1, 2), ((3,),), ("b",)), ((1, 2), (), ())],
)
def test_other_tokens_or_candidates_are_another_prompt(token_ids, candidate_ids, candidates):
    other = Prompt(token_ids, candidate_ids, candidates, "here")
    assert other != PROMPT
    assert other not in {PROMPT: 1}


def test_a_prompt_is_not_equal_to_a_text():
    assert PROMPT != "here"
