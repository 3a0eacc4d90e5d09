"""How varied a rollout was, against numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lgym.modules.describe import describe
from lgym.modules.variety import repeated_ngrams

from modules.test_grpo import rollout as spoken
from modules.test_ppo import learner, rollout


def test_rewards_to_come_by_context():
    """Catches a turn's own reward in place of what the episode still paid, idle turns, and another episode's rewards."""
    metrics = describe(rollout(learner(), rewards=torch.tensor([[1.0, 3.0, -1.0], [0.0, 2.0, 0.0]])))
    # stream 0: turns of contexts 0, 1 | 0 pay 1 3 | -1, so 4 3 | -1 are to come; stream 1: contexts 2, 1 pay 0 2, so 2 2.
    # context 0: 4, -1: variance 6.25, mean 1.5; context 1: 3, 2: variance 0.25, mean 2.5; context 2 is alone
    assert metrics["rollout/return_variance_within"] == pytest.approx(3.25)
    assert metrics["rollout/return_variance_across"] == pytest.approx(0.25)
    # returns 1, -1, 2: mean 2/3, variance (1/9 + 25/9 + 16/9) / 3 = 14/9
    assert metrics["rollout/return_std"] == pytest.approx((14 / 9) ** 0.5)


def test_contexts_met_once_tell_nothing_of_variance():
    """Catches a 0, or a NaN in TensorBoard, where histories make every prompt another one."""
    played = rollout(learner())
    alone = replace(played, context_ids=torch.tensor([[0, 1, 2], [2, 1, 0]]), mask=torch.tensor([[True] * 3, [False] * 3]))
    assert not any("variance" in name for name in describe(alone))


def test_actions_are_the_same_by_their_text():
    """Catches candidates compared by their place: "y" is the second of context 0 and 1, and the first of context 2."""
    played = rollout(learner())
    probabilities = torch.tensor([[0.1, 0.9, 0.0], [0.1, 0.9, 0.0], [0.9, 0.1, 0.0]])
    metrics = describe(replace(played, candidate_logprobs=probabilities.log()))
    assert metrics["rollout/dominant_action"] == pytest.approx(0.9)
    assert metrics["policy/action_state_mi"] == pytest.approx(0.0, abs=1e-6)


def test_what_was_said_most():
    """Catches answers counted by their number in the rollout, which are all different, and the candidate's text ignored."""
    played = spoken()
    texts = ["a", "b", "a", "a", "c", "a"]  # of replies 0 ... 5, which are said once each
    freely = tuple(replace(reply, text=text) for reply, text in zip(played.replies, texts, strict=True))
    metrics = describe(replace(played, replies=freely))
    assert metrics["rollout/dominant_action"] == pytest.approx(4 / 6)
    assert "policy/action_state_mi" not in metrics
    contexts = tuple(replace(context, candidates=("x", "y")) for context in played.contexts)
    chosen = tuple(replace(reply, choice=1) for reply in freely)
    assert describe(replace(played, contexts=contexts, replies=chosen))["rollout/dominant_action"] == 1.0


def test_repeated_sequences_of_tokens():
    """1 2 1 2 1 2 1 has the fours 1212, 2121, 1212, 2121: half of them have been there. Catches overlaps left out."""
    assert repeated_ngrams([1, 2, 1, 2, 1, 2, 1]) == 0.5
    assert repeated_ngrams([1, 2, 3, 4, 5]) == 0.0
    assert repeated_ngrams([1, 1, 1]) == 0.0  # too short for one
    assert repeated_ngrams([1, 1, 1, 2], n=1) == 0.5
    with pytest.raises(ValueError, match="n must be 1 or more, got 0"):
        repeated_ngrams([1], n=0)
    played = spoken()
    loop = replace(played.replies[2], ids=(9,) * 8, logprobs=(-1.0,) * 8)  # five fours, one of them new
    replies = (*played.replies[:2], loop, *played.replies[3:5], loop)
    assert describe(replace(played, replies=replies))["rollout/repetition"] == pytest.approx(2 * 4 / 5 / 6)


def test_episodes_that_the_border_cuts_say_nothing_of_variance():
    """What they still would have been paid is not known: stream 0 pays 4, 3 and then -1 of an episode that goes on."""
    cut = torch.tensor([[False, False, True], [False, False, False]])
    played = rollout(
        learner(),
        rewards=torch.tensor([[1.0, 3.0, -1.0], [0.0, 2.0, 0.0]]),
        terminated=torch.tensor([[False, True, False], [False, True, True]]),
        truncated=cut,
        cut=cut,
    )
    metrics = describe(played)
    # context 0 is met once now (4), so that context 1 alone counts: 3 and 2, variance 0.25
    assert metrics["rollout/return_variance_within"] == pytest.approx(0.25)
    assert metrics["rollout/return_variance_across"] == pytest.approx(0.0)
    assert not any("variance" in name for name in describe(replace(played, episode_ids=torch.full((2, 3), 2))))


def test_penalties_are_told_apart_from_what_was_paid():
    """A mean return of -5 may be no more than the agent's own penalty for what it could not read."""
    metrics = describe(replace(spoken(), episode_penalties=torch.tensor([-1.0, 0.0, -2.0, 0.0])))
    assert metrics["rollout/penalty_mean"] == pytest.approx(-0.75)
    assert "rollout/penalty_mean" not in describe(rollout(learner()))
