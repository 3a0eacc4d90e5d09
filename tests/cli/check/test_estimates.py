"""Estimates of a rollout's time and memory, from what was measured."""

from __future__ import annotations

import dataclasses
import types

import pytest
import torch

from lgym.cli.check.estimates import estimate, kv_cache_bytes, play_rates, step_seconds
from lgym.cli.check.learning_trial import LearningTrial, Step
from lgym.cli.check.timed_policy import Call, Piece
from lgym.cli.check.trial import Trial
from lgym.data.random_play import RandomPlay


def settings(episodes, turns, prompts_per_pass=None, replay=None, logged=()):
    return types.SimpleNamespace(
        episodes_per_rollout=episodes,
        turns_per_rollout=turns,
        update_epochs=5,
        prompts_per_pass=prompts_per_pass,
        replay=replay,
        logged=logged,
        prompts_per_minibatch=lambda units: 4,
        num_envs=8,
        eval_episodes=10,
    )


def test_an_estimate_is_proportional():
    """A policy that chooses pays for prompts, one that speaks for turns."""
    rollout = types.SimpleNamespace(
        episode_lengths=torch.tensor([2.0, 2.0]), mask=torch.ones(2, 2), prompts=[0, 0]
    )
    trial = Trial(rollout, [], [], [], [Piece(4, [Call(2, 0.6)], 1.0)], None, [], 100)
    learned = LearningTrial([Step(1, 9.0), Step(2, 3.0)], False, 2, 0.4, True, 110, 7)
    play = RandomPlay(distinct=list(range(1, 41)), seconds=4.0)  # each turn brings a new prompt
    extra = {"kv_bytes": 0.0, "generates_text": False}
    asked = estimate(settings(20, None), trial, learned, play, **extra)
    assert asked["turns"] == 40.0  # 20 episodes of 2
    assert asked["distinct_prompts"] == 40.0
    # Of 1 s for 2 prompts in 4 turns the policy takes 0.6: 0.3 s a prompt, and 0.1 s a turn beside it
    assert asked["play_seconds"] == pytest.approx(0.3 * 40 + 0.1 * 40)
    assert asked["evaluation_seconds"] == pytest.approx(0.3 * 40 + 0.1 * 40)  # 2 modes of 10 episodes of 2
    assert asked["learn_seconds"] == pytest.approx(5 * 40 * 3.0 / 2 + 0.4 * 20)
    assert asked["memory_bytes"] == 100 + 10 * 4 / 2 + 7
    fewer = estimate(settings(20, None, prompts_per_pass=10), trial, learned, play, **extra)
    assert fewer["learn_seconds"] == pytest.approx(5 * 10 * 3.0 / 2 + 0.4 * 20)
    buffer = types.SimpleNamespace(minibatch_size=16, updates_per_rollout=6, capacity=1000)
    replayed = estimate(settings(20, None, replay=buffer), trial, learned, play, **extra)
    # 6 steps of 16 prompts, 3 s for 2, and the preparation of 40 prompts, 0.4 s for 2
    assert replayed["learn_seconds"] == pytest.approx(6 * 16 * 3.0 / 2 + 0.4 * 20)
    log = [types.SimpleNamespace(turns=[None] * 12)]
    offline = estimate(settings(None, None, replay=buffer, logged=log), trial, learned, play, **extra)
    assert (offline["turns"], offline["distinct_prompts"], offline["play_seconds"]) == (12.0, 12.0, 0.0)
    # 6 steps of all 12 prompts
    assert offline["learn_seconds"] == pytest.approx(6 * 12 * 3.0 / 2 + 0.4 * 6)
    speaking = dataclasses.replace(learned, by_response=True, units=3)  # 3 distinct responses in 4 turns
    spoken = estimate(settings(None, 80), trial, speaking, play, kv_bytes=300.0, generates_text=True)
    assert spoken["play_seconds"] == pytest.approx(0.3 * 80 + 0.1 * 80)
    assert spoken["learn_seconds"] == pytest.approx(5 * 60 * 3.0 / 2 + 0.4 * 20)
    assert spoken["memory_bytes"] == 100 + 300 + 7


def test_prompts_of_earlier_rollouts_cost_less():
    """40 turns of random play met 20 prompts, of which the second half brought none: a later rollout computes
    nothing for the first time, and a prompt then takes 0.05 s; its value head's features are of a few."""
    rollout = types.SimpleNamespace(
        episode_lengths=torch.tensor([2.0, 2.0]), mask=torch.ones(2, 2), prompts=[0, 0]
    )
    repeated = [Call(1, 0.05), Call(2, 0.1)]
    trial = Trial(rollout, [], [], [], [Piece(4, [Call(2, 0.6)], 1.0)], None, repeated, 100)
    learned = LearningTrial([Step(1, 9.0), Step(2, 3.0)], False, 2, 0.4, False, 110, 7)
    extra = {"kv_bytes": 0.0, "generates_text": False}
    play = RandomPlay(distinct=[*range(1, 21), *[20] * 20], seconds=4.0)
    asked = estimate(settings(100, None), trial, learned, play, **extra)
    assert asked["turns"] == 200.0
    assert asked["distinct_prompts"] == 20.0
    assert asked["play_seconds"] == pytest.approx(0.05 * 20 + 0.1 * 200)
    assert asked["learn_seconds"] == pytest.approx(5 * 20 * 3.0 / 2 + 0.4)
    growing = RandomPlay(distinct=list(range(1, 41)), seconds=4.0)
    asked = estimate(settings(100, None), trial, learned, growing, **extra)
    assert asked["play_seconds"] == pytest.approx(0.3 * 200 + 0.1 * 200), "each turn brings a new prompt"


def test_calls_of_the_policy_and_their_prompts_have_their_costs():
    """A call takes 2 s and a prompt 0.5, those that had come up before nothing, and beside that a turn 0.01
    s: half of it, if random play has half of it, and the rest for each of 16 prompts. The first rollout, which warms up, does not count. So 40 turns of 4 environments with 30 new prompts are
    10 calls: 20 + 15 + 0.4 s."""
    warm = Piece(10, [Call(1, 60.0)], 70.0)
    piece = Piece(100, [Call(10, 7.0), Call(2, 3.0), Call(4, 4.0), Call(0, 0.0)], 15.0)
    rates = play_rates([warm, piece], turn_seconds=0.02)
    assert rates == pytest.approx((2.0, 0.5, 0.01))
    assert play_rates([warm, piece], turn_seconds=0.005) == pytest.approx((2.0, 0.5 + 0.5 / 16, 0.005))
    assert rates.seconds(40.0, 30.0, 4) == pytest.approx(35.4)
    assert rates.seconds(40.0, 3.0, 4) == pytest.approx(3 * 2 + 3 * 0.5 + 0.4)  # no more calls than prompts
    known = Piece(50, [Call(0, 0.0)], 1.0)
    assert play_rates([piece, known], turn_seconds=0.02)[:2] == pytest.approx((2.0, 0.5))
    noisy = Piece(100, [Call(10, 1.0), Call(2, 3.0), Call(4, 4.0)], 9.0)  # more prompts in less time
    assert play_rates([noisy], turn_seconds=0.02) == pytest.approx((0.0, 0.5, 0.01))


def test_a_step_that_did_not_fit_is_extrapolated():
    """On the line through 1 prompt in 1.5 s and 4 in 3 s, half a second each; behind a warm-up alone, in
    proportion."""
    grown = [Step(1, 9.0), Step(1, 1.5), Step(2, 3.5), Step(4, 3.0)]
    assert step_seconds(grown, 16) == pytest.approx(9.0)
    assert step_seconds(grown[:2], 16) == pytest.approx(24.0)
    assert step_seconds(grown[:1], 2) == pytest.approx(18.0)
    assert step_seconds([Step(1, 9.0), Step(1, 4.0), Step(4, 3.0)], 16) == 3.0  # noise: never less


def test_keys_and_values_of_environments_that_play_together():
    """3 layers of 2 heads of 2 numbers of 4 bytes, keys and values: 96 bytes a token, copied once; 4 tokens of
    the prompt and 6 of the response in each environment."""
    config = types.SimpleNamespace(num_attention_heads=2, hidden_size=4, num_hidden_layers=3)
    causal_lm = types.SimpleNamespace(
        config=types.SimpleNamespace(get_text_config=lambda: config),
        get_input_embeddings=lambda: types.SimpleNamespace(weight=torch.zeros(1)),
    )
    policy = types.SimpleNamespace(
        generates_text=True,
        max_new_tokens=6,
        kv_cache_tokens=50,
        llm=types.SimpleNamespace(causal_lm=causal_lm),
    )
    module = types.SimpleNamespace(policy=policy)
    rollout = types.SimpleNamespace(prompts=[types.SimpleNamespace(token_ids=range(4))])
    alone, kept = (types.SimpleNamespace(history=history) for history in (0, "full"))
    assert kv_cache_bytes(alone, module, rollout, 4) == 2 * 96 * 4 * 10
    assert kv_cache_bytes(alone, module, rollout, 8) == 2 * 96 * 50  # no more are held
    assert kv_cache_bytes(kept, module, rollout, 8) == 2 * 96 * 8 * 10  # but of whole conversations all
    policy.generates_text = False
    assert kv_cache_bytes(alone, module, rollout, 8) == 0
    assert kv_cache_bytes(kept, module, rollout, 4) == 2 * 96 * 4 * 10
