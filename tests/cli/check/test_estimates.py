"""Estimates of a rollout's time and memory, from what was measured."""

from __future__ import annotations

import dataclasses
import types

import torch

from lgym.cli.check.estimates import estimate, kv_cache_bytes
from lgym.cli.check.random_play import RandomPlay
from lgym.cli.check.trial import Trial


def test_an_estimate_is_proportional():
    """A policy that chooses pays for prompts, one that speaks for turns."""

    def data(episodes, turns):
        return types.SimpleNamespace(
            episodes_per_rollout=episodes,
            turns_per_rollout=turns,
            update_epochs=5,
            minibatch_size=4,
            num_envs=8,
        )

    rollout = types.SimpleNamespace(
        episode_lengths=torch.tensor([2.0, 2.0]), mask=torch.ones(2, 2), prompts=[0, 0], seconds=1.0
    )
    trial = Trial(rollout, [], [], 1.0, None, 3.0, 2, False, 100, 110, 7, 0.0)
    play = RandomPlay(distinct=list(range(1, 41)), seconds=4.0)
    asked = estimate(data(20, None), trial, play, generates_text=False)
    assert asked["turns"] == 40.0  # 20 episodes of 2
    assert asked["distinct_prompts"] == 40.0
    assert asked["play_seconds"] == 20.0 + 4.0  # half a second a prompt; 0.1 s a turn in the environments
    assert asked["learn_seconds"] == 5 * 40 * 3.0 / 2
    assert asked["memory_bytes"] == 100 + 10 * 4 / 2 + 7
    spoken = estimate(data(None, 80), dataclasses.replace(trial, by_response=True), play, generates_text=True)
    assert spoken["play_seconds"] == 80 / 4
    assert spoken["learn_seconds"] == 5 * 80 * 3.0 / 2
    written = dataclasses.replace(trial, kv_bytes=300.0)
    assert estimate(data(20, None), written, play, generates_text=True)["memory_bytes"] == 100 + 300 + 7


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
