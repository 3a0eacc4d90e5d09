"""The table of a rollout's prompts: equal ones have one number, and one value."""

from __future__ import annotations

import numpy as np
import torch

from helpers.prompts import make_prompt
from helpers.scripted import CandidateScorer, prompt_value
from lgym.data.rollout.recorder import PromptTable

PROMPTS = [make_prompt(text, "left", "right") for text in ("red", "green", "blue")]


class Actor(CandidateScorer):
    def __init__(self, has_critic=True):
        self.has_critic, self.valued = has_critic, []

    def values(self, prompts):
        self.valued.append(list(prompts))
        return super().values(prompts) if self.has_critic else torch.full((len(prompts),), torch.nan)


def test_equal_prompts_have_one_number():
    """Also one that was made anew."""
    table = PromptTable(Actor())
    again = make_prompt("red", "left", "right")
    assert [table.index(prompt) for prompt in (*PROMPTS, again)] == [0, 1, 2, 0]
    assert table.index(make_prompt("red", "right", "left")) == 3, "other candidates make another prompt"


def test_only_values_that_nobody_acted_on_are_computed_at_the_end():
    """Each of them once, in one batch."""
    policy = Actor()
    table = PromptTable(policy)
    for prompt in PROMPTS:
        table.index(prompt)
    table.act(np.array([1, 1]), np.random.default_rng(0))
    assert np.isnan(table.values).tolist() == [True, False, True]
    policy.valued.clear()
    table.complete()
    assert policy.valued == [[PROMPTS[0], PROMPTS[2]]]
    assert table.values.tolist() == np.float32([prompt_value(prompt) for prompt in PROMPTS]).tolist()


def test_without_a_critic_values_stay_unknown():
    policy = Actor(has_critic=False)
    table = PromptTable(policy)
    table.index(PROMPTS[0])
    table.complete()
    assert np.isnan(table.values).all()
    assert policy.valued == []
    response_number = int(table.act(np.array([0]), None)[0])
    assert table.turn(0, response_number, 1.0).value is None


def test_equal_choices_are_one_response():
    """Policies give one object for equal choices to one prompt; another prompt has others."""
    table = PromptTable(Actor())
    for prompt in PROMPTS[:2]:
        table.index(prompt)
    numbers = table.act(np.array([0, 0, 1]), None)
    assert numbers[0] == numbers[1] != numbers[2]
    assert len(table.responses) == 2
    turn = table.turn(0, int(numbers[0]), 0.5)
    assert (turn.observation_text, turn.reward) == ("red", 0.5)
    assert list(turn.probabilities) == ["left", "right"]
    assert sum(turn.probabilities.values()) == np.float32(1.0)
