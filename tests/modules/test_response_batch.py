"""Chains of prompts that a minibatch takes together, those that one conversation led through; and bonuses in
the rewards."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from helpers.prompts import make_prompt
from helpers.rollouts import text_learner, text_rollout, turns_of
from lgym.modules import A2C, GRPO, PPO, REINFORCE, RLOO, GiGPO
from lgym.modules.metrics import rollout_metrics
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


BONUSES = torch.tensor([[0.5, 0.0, 0.25], [1.0, 2.0, 0.0]])


def test_bonuses_are_learned_from_beside_the_rewards():
    """Episodes 0, 0, 2 and 1, 1, 3 with returns 3, 1, 0.5 and 0.5; the rollout's own returns stay."""
    turns = turns_of(text_rollout(bonuses=BONUSES))
    assert turns.rewards.tolist() == [[1.5, 2.0, 0.75], [1.0, 3.0, 0.5]]
    assert turns.episode_returns.tolist() == [3.5, 4.0, 0.75, 0.5]
    assert turns.rollout.episode_returns.tolist() == [3.0, 1.0, 0.5, 0.5]


def test_the_mean_of_bonuses_is_reported_beside_the_environments_return():
    """(0.5 + 0.25 + 1 + 2) / 4 episodes; the return is (3 + 1 + 0.5 + 0.5) / 4 with them and without."""
    metrics, without = (rollout_metrics(turns_of(text_rollout(bonuses=b))) for b in (BONUSES, None))
    assert metrics.pop("rollout/bonus_mean") == 0.9375
    assert metrics["rollout/return_mean"] == 1.25
    assert metrics == without


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (PPO, {}),
        (PPO, {"advantage_level": "token"}),
        (A2C, {}),
        (GRPO, {}),
        (RLOO, {}),
        (GiGPO, {}),
        (REINFORCE, {}),
    ],
)
def test_every_algorithm_learns_from_bonuses_alone(algorithm, settings):
    """Nothing was paid and no episode terminated but in REINFORCE, which has whole ones: whitening must not
    take the advantages for noise, nor a group for one without a signal."""
    idle = torch.zeros(2, 3)
    ends = {"terminated": torch.tensor([[False, True, True]] * 2)}
    if algorithm not in (REINFORCE,):
        ends = {"terminated": idle.bool(), "truncated": ends["terminated"]}
    module = text_learner(algorithm, **settings)
    for bonuses, expected in ((BONUSES, True), (idle, False)):
        rollout = text_rollout(rewards=idle, bonuses=bonuses, **ends)
        turns = turns_of(rollout)
        assert bool((module.estimate_advantages(turns).advantages.abs() > 1e-4).any()) == expected
