"""Turns to imitate: each token counts the same, wherever it was said."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import echo, tiny
from helpers.replies import reply_batch
from lgym.batch import Reply
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.sft_sampler import Imitation
from lgym.data.prompts.prompt_builder import PromptBuilder
from modules.test_grpo import learner


def imitation(*pairs, size=10):
    """Of observations with the replies to them, a token a letter."""
    builder = PromptBuilder(tiny.tokenizer(), "Say the word.", 2048)

    def say(context, text, ids, choice):
        ids = tuple(tiny.tokenizer().encode(text))
        return Reply(ids, (0.0,) * len(ids), True, text)

    demonstrations = [Demonstration(observation, text) for observation, text in pairs]
    return Imitation(echo.EchoAgent(), builder, say, demonstrations, None, size, chooses=False)


def test_every_token_counts_the_same():
    """A reply of 1 token and one of 7: each is an eighth of the loss. Averaged over turns the single token
    would count a half, and a model would learn short replies seven times as fast."""
    batch = imitation(("red", "r"), ("blue", "bluebee")).draw(np.random.default_rng(0))
    assert sorted(batch.mask.sum(1).tolist()) == [1, 7]
    assert batch.scale == pytest.approx(1 / 8)
    module = learner()
    total = 0.0
    for row, ids in zip(batch.rows.tolist(), batch.replies, strict=True):
        alone = reply_batch([batch.contexts[row]], [0], [ids])
        with torch.no_grad():
            total -= float(module.policy.likelihoods(alone).logprobs.sum())
    with torch.no_grad():
        assert float(module.imitation_loss(batch)) == pytest.approx(total / 8, rel=1e-5)


def test_a_question_that_was_made_twice_is_asked_once(monkeypatch):
    """Catches contexts told apart by who made them: the second turn's was forgotten by a full cache and made
    anew."""
    monkeypatch.setattr("lgym.data.prompts.prompt_builder.CACHED_TOKENS", 1)
    batch = imitation(("red", "r"), ("blue", "b"), ("red", "e")).draw(np.random.default_rng(0))
    assert sorted(context.observation_text for context in batch.contexts) == ["blue", "red"]
    assert len(batch.rows) == 3
