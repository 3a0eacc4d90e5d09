"""Writing replies: the same tokens and log-probabilities as one full forward pass, whoever else is in the batch."""

from __future__ import annotations

import pytest
import torch
from models.test_tree_attention import FAMILIES, model_of, wrapped

from helpers import tiny
from lgym.models.decoding import Sampling, write_replies

PROMPTS = [
    (1, 2, 3, 4, 5, 6, 7, 20, 21),
    (1, 2, 3, 4, 5, 6, 7, 20, 22, 23),
    (1, 2, 3, 4, 5, 6, 30),
    (1, 2, 3, 4, 5, 6, 7, 20, 21),
]
UNLIKE = [(9, 8, 7), (1, 2, 3, 4, 5, 6, 30), (50,)]


def replies_of(llm, prompts, seed=0, stop_ids=(), **settings):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    limit = settings.pop("max_new_tokens", 12)
    return write_replies(
        llm, prompts, max_new_tokens=limit, stop_ids=stop_ids, sampling=Sampling(**settings), generator=generator
    )[0]


def recomputed(llm, prompt, reply, **settings):
    """Log-probabilities of a reply's tokens by the transformers model alone, in one pass over prompt and reply."""
    logits = llm.causal_lm(input_ids=torch.tensor([prompt + reply.ids])).logits[0, len(prompt) - 1 : -1]
    return Sampling(**settings).logprobs(logits).gather(-1, torch.tensor(reply.ids)[:, None]).squeeze(-1)


@pytest.mark.parametrize("prompts", [PROMPTS, UNLIKE, PROMPTS[:1]], ids=["prefix", "no prefix", "one"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}], ids=str)
def test_logprobs_are_those_of_one_full_forward(llm, prompts, settings):
    """A stale key, a wrong position or a neighbour's token shows as another log-probability."""
    for prompt, reply in zip(prompts, replies_of(llm, prompts, **settings), strict=True):
        assert len(reply.ids) == len(reply.logprobs) == 12
        expected = recomputed(llm, prompt, reply, **settings)
        assert expected.isfinite().all()
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["tree", "rows", "whole"])
def test_greedy_is_transformers_own(llm, layout):
    """Against `generate`, one prompt at a time."""
    llm.layout = layout
    for prompt, reply in zip(PROMPTS, replies_of(llm, PROMPTS, seed=None), strict=True):
        ids = torch.tensor([prompt])
        own = llm.causal_lm.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=None
        )
        assert list(reply.ids) == own[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_writes_what_transformers_writes(family):
    """Soft caps, partial rotation, learned positions, windows: token by token as in `generate`."""
    model, _ = model_of(family)
    llm = wrapped(model)
    for prompt, reply in zip(PROMPTS, replies_of(llm, PROMPTS, seed=None), strict=True):
        ids = torch.tensor([prompt])
        own = llm.causal_lm.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=None
        )
        assert list(reply.ids) == own[0, len(prompt) :].tolist()


def test_the_states_at_the_prompts_ends_come_along(llm):
    """What values are read from."""
    _, ends = write_replies(llm, PROMPTS, max_new_tokens=3, stop_ids=(), sampling=Sampling(), generator=None)
    for prompt, end in zip(PROMPTS, ends, strict=True):
        own = llm.causal_lm.base_model(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1]
        torch.testing.assert_close(end, own, rtol=1e-5, atol=1e-6)


def test_a_reply_that_has_ended_leaves(llm):
    """Its end is kept, the others go on as if it were still there, and it costs no more tokens."""
    free = replies_of(llm, PROMPTS, seed=None)
    stop = free[2].ids[3]
    llm.tokens_computed = 0
    stopped = replies_of(llm, PROMPTS, seed=None, stop_ids=[stop])
    for before, after in zip(free, stopped, strict=True):
        cut = before.ids.index(stop) + 1 if stop in before.ids else 12
        assert after.ids == before.ids[:cut]
        assert after.ended == (stop in before.ids)
    assert stopped[2].ended
    prompts = 6 + 3 + 2 + 1  # common prefix; 7 20 21, then 22 23, then 30
    assert llm.tokens_computed == prompts + sum(len(reply.ids) - 1 for reply in stopped)


def test_a_prefix_is_kept_while_the_weights_are_fixed(llm):
    free = replies_of(llm, PROMPTS, seed=None)
    with llm.fixed():
        replies_of(llm, PROMPTS, seed=None)
        llm.tokens_computed = 0
        assert replies_of(llm, PROMPTS[:1], seed=None)[0].ids == free[0].ids
        assert llm.tokens_computed == 3 + 11


def test_tokens_are_drawn_as_often_as_they_are_likely(llm):
    """4,000 draws: one of 260 deviations passes 5 standard errors once in 7,000 runs, and the seed is fixed."""
    prompt = (5, 6, 7)
    draws = replies_of(llm, [prompt] * 4000, max_new_tokens=1)
    counts = torch.bincount(torch.tensor([reply.ids[0] for reply in draws]), minlength=260) / 4000
    expected = llm.causal_lm(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)
    error = (expected * (1 - expected) / 4000).sqrt() + 1e-3
    assert float(((counts - expected).abs() / error).max().detach()) < 5
    assert float(expected.max()) < 0.9
    assert replies_of(llm, [prompt] * 40) != replies_of(llm, [prompt] * 40, seed=1)
    assert replies_of(llm, [prompt] * 40) == replies_of(llm, [prompt] * 40)


def test_torchs_default_precision_changes_nothing(llm):
    """Under `bf16-true` Lightning makes bfloat16 the default: noise and records would lose all but three digits."""
    before = replies_of(llm, PROMPTS)
    torch.set_default_dtype(torch.bfloat16)
    after = replies_of(llm, PROMPTS)
    assert after == before


def test_bf16_stays_close_to_its_own_forward_pass():
    """What `policy/logprob_gap` will show on the real model: rounding, no more."""
    llm = tiny.llm(dtype=torch.bfloat16)
    for prompt, reply in zip(PROMPTS, replies_of(llm, PROMPTS), strict=True):
        torch.testing.assert_close(torch.tensor(reply.logprobs), recomputed(llm, prompt, reply), rtol=0, atol=0.3)
