"""Metrics of a rollout against numbers by hand, and over several processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.rollouts import candidate_learner, candidate_rollout, text_rollout, turns_of
from lgym import distributed
from lgym.modules.metrics import reduce_metrics, repeated_ngrams, rollout_metrics

REWARDS = torch.tensor([[1.0, 3.0, -1.0], [0.0, 2.0, 0.0]])


def metrics_of(rollout):
    return rollout_metrics(turns_of(rollout))


def choices(**changes):
    return candidate_rollout(candidate_learner(), **changes)


def test_variance_of_returns_to_go_by_prompt():
    """Catches a turn's own reward in place of the episode's from there on, idle turns, and another episode's
    rewards."""
    metrics = metrics_of(choices(rewards=REWARDS))
    # stream 0: turns of prompts 0, 1 | 0 have 1 3 | -1, so 4 3 | -1 to go;
    # stream 1: prompts 2, 1 have 0 2, so 2 2.
    # prompt 0: 4, -1: variance 6.25, mean 1.5; prompt 1: 3, 2: variance 0.25, mean 2.5; prompt 2 is alone
    assert metrics["rollout/return_variance_within"] == pytest.approx(3.25)
    assert metrics["rollout/return_variance_across"] == pytest.approx(0.25)
    # returns 1, -1, 2: mean 2/3, variance (1/9 + 25/9 + 16/9) / 3 = 14/9
    assert metrics["rollout/return_std"] == pytest.approx((14 / 9) ** 0.5)


def test_prompts_met_once_have_no_variance():
    """Catches a 0, or a NaN in TensorBoard, where histories make every prompt another one."""
    mask = torch.tensor([[True] * 3, [False] * 3])
    metrics = metrics_of(choices(prompt_index=torch.tensor([[0, 1, 2], [2, 1, 0]]), mask=mask))
    assert not any("variance" in name for name in metrics)


def test_episodes_that_the_border_cuts_have_no_variance():
    """Their rest is not known: stream 0 has 4, 3 and then -1 of an episode that goes on."""
    cut = torch.tensor([[False, False, True], [False, False, False]])
    terminated = torch.tensor([[False, True, False], [False, True, True]])
    rollout = choices(rewards=REWARDS, terminated=terminated, truncated=cut, cut=cut)
    metrics = metrics_of(rollout)
    # prompt 0 is met once now (4), so that prompt 1 alone counts: 3 and 2, variance 0.25
    assert metrics["rollout/return_variance_within"] == pytest.approx(0.25)
    assert metrics["rollout/return_variance_across"] == pytest.approx(0.0)
    one_episode = replace(rollout, episode_ids=torch.full((2, 3), 2))
    assert not any("variance" in name for name in metrics_of(one_episode))


def test_actions_are_the_same_by_their_text():
    """Catches candidates compared by their position: "y" is the second of prompts 0 and 1, and the first of
    prompt 2."""
    rollout = choices()
    known = {}
    for prompt, row in zip(rollout.prompts, ([0.1, 0.9], [0.1, 0.9, 0.0], [0.9, 0.1]), strict=True):
        known[prompt.candidate_ids] = tuple(torch.tensor(row).log().tolist())
    by_response = dict(
        zip(rollout.response_index.flatten().tolist(), rollout.prompt_index.flatten().tolist(), strict=True)
    )
    responses = tuple(
        replace(response, candidate_logprobs=known[rollout.prompts[by_response[number]].candidate_ids])
        for number, response in enumerate(rollout.responses)
    )
    metrics = metrics_of(replace(rollout, responses=responses))
    assert metrics["rollout/dominant_action"] == pytest.approx(0.9)
    assert metrics["policy/action_state_mi"] == pytest.approx(0.0, abs=1e-6)


def test_the_dominant_action_of_free_text():
    """Catches responses counted by their number in the rollout, which are all different, and the whole text
    in place of the part that the agent read."""
    rollout = text_rollout()
    texts = ["a", "b", "a", "a", "c", "a"]
    freely = [
        replace(response, text=text, action_text=text)
        for response, text in zip(rollout.responses, texts, strict=True)
    ]
    metrics = metrics_of(replace(rollout, responses=tuple(freely)))
    assert metrics["rollout/dominant_action"] == pytest.approx(4 / 6)
    assert "policy/action_state_mi" not in metrics
    chosen = tuple(replace(response, action_text="y", choice=1) for response in freely)
    assert metrics_of(replace(rollout, responses=chosen))["rollout/dominant_action"] == 1.0


def test_repeated_ngrams():
    """1 2 1 2 1 2 1 has the fours 1212, 2121, 1212, 2121: half of them have been there. Catches overlaps left
    out."""
    assert repeated_ngrams([1, 2, 1, 2, 1, 2, 1]) == 0.5
    assert repeated_ngrams([1, 2, 3, 4, 5]) == 0.0
    assert repeated_ngrams([1, 1, 1]) == 0.0  # too short for one
    assert repeated_ngrams([1, 1, 1, 2], n=1) == 0.5
    with pytest.raises(ValueError, match="n must be 1 or more, got 0"):
        repeated_ngrams([1], n=0)


def test_the_repetition_of_a_rollout_is_that_of_its_responses():
    rollout = text_rollout()
    loop = replace(
        rollout.responses[2], token_ids=(9,) * 8, logprobs=(-1.0,) * 8, action_mask=(True,) * 8
    )  # five fours, one of them new
    responses = (*rollout.responses[:2], loop, *rollout.responses[3:5], loop)
    metrics = metrics_of(replace(rollout, responses=responses))
    assert metrics["rollout/repetition"] == pytest.approx(2 * 4 / 5 / 6)


def test_penalties_are_told_apart_from_rewards():
    """A mean return of -5 may be no more than the agent's own penalty for responses that it could not
    read."""
    metrics = metrics_of(text_rollout(episode_penalties=torch.tensor([-1.0, 0.0, -2.0, 0.0])))
    assert metrics["rollout/penalty_mean"] == pytest.approx(-0.75)
    assert "rollout/penalty_mean" not in metrics_of(choices())


def test_metrics_of_several_processes(monkeypatch):
    """Catches counts that are averaged, a gap that is hidden by a smaller one, and means that do not weigh by
    their turns or episodes; a metric that one process alone has is its own."""
    first = {
        "rollout/turns": 30.0,
        "rollout/episodes": 1.0,
        "rollout/episodes_reported": 1.0,
        "policy/logprob_diff_max": 0.5,
        "rollout/return_mean": 4.0,
    }
    second = {
        "rollout/turns": 10.0,
        "rollout/episodes": 3.0,
        "rollout/episodes_reported": 3.0,
        "policy/logprob_diff_max": 0.1,
        "rollout/return_mean": 8.0,
    }
    both = [
        {**first, "rollout/parse_rate": 1.0},
        {**second, "rollout/parse_rate": 0.2, "policy/action_state_mi": 0.7},
    ]
    monkeypatch.setattr(distributed, "all_gather_object", lambda value: both)
    assert reduce_metrics(both[0]) == pytest.approx(
        {
            "rollout/turns": 40.0,
            "rollout/episodes": 4.0,
            "rollout/episodes_reported": 4.0,
            "policy/logprob_diff_max": 0.5,
            "rollout/return_mean": 7.0,  # (1 * 4 + 3 * 8) / 4
            "rollout/parse_rate": 0.8,  # (30 * 1 + 10 * 0.2) / 40
            "policy/action_state_mi": 0.7,
        }
    )
