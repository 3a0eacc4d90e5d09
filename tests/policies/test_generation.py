"""The generation policy: what it records at play is what it computes in training, and both are the model's own."""

from __future__ import annotations

import pytest
import torch
from lgym.policies.writing import stop_ids

from helpers import tiny
from helpers.replies import reply_batch
from lgym.batch import Context
from lgym.policies import GenerationPolicy


def context(text: str) -> Context:
    return Context(tuple(tiny.tokenizer()(f"Rules. {text}", add_special_tokens=False)["input_ids"]), (), (), text)


CONTEXTS = [context("red"), context("green"), context("a long way round")]


def policy(**settings) -> GenerationPolicy:
    made = GenerationPolicy(**{"max_new_tokens": 9, **settings})
    made.bind(tiny.llm(dtype=torch.float64))
    return made


def replies_of(acting, count=8, seed=0):
    asked = [CONTEXTS[i % 3] for i in range(count)]
    return [i % 3 for i in range(count)], acting.reply(asked, seed)[0]


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.6}, {"responses_per_forward": 3}, {"share_prefixes": False}], ids=str
)
def test_training_computes_what_was_recorded(settings):
    """`policy/logprob_diff_max` is 0: no padding, position or temperature comes between playing and learning."""
    acting = policy(**settings)
    rows, replies = replies_of(acting)
    with torch.no_grad():
        logprobs = acting.likelihoods(reply_batch(CONTEXTS, rows, [reply.ids for reply in replies])).logprobs
    for own, reply in zip(logprobs, replies, strict=True):
        torch.testing.assert_close(own[: len(reply.ids)].float(), torch.tensor(reply.logprobs), rtol=1e-4, atol=1e-5)
        assert (own[len(reply.ids) :] == 0).all()


def test_gradients_equal_those_of_one_full_pass_a_reply():
    """Shared prompts, gathered: the adapters must learn from every reply's every token, once."""
    acting = policy()
    rows, replies = replies_of(acting)
    weights = torch.linspace(-1, 1, 9, dtype=torch.float64)
    parameters = [p for name, p in acting.named_parameters() if "lora" in name]
    likely = acting.likelihoods(reply_batch(CONTEXTS, rows, [reply.ids for reply in replies]))
    logprobs, entropies = likely.logprobs, likely.entropy
    shared = torch.autograd.grad((logprobs * weights[: logprobs.shape[1]]).sum(), parameters)
    total = torch.zeros((), dtype=torch.float64)
    for b, (row, reply) in enumerate(zip(rows, replies, strict=True)):
        prompt = CONTEXTS[row].prompt_ids
        logits = acting.llm.causal_lm(input_ids=torch.tensor([prompt + reply.ids])).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1)
        total = total + (own[range(len(reply.ids)), list(reply.ids)] * weights[: len(reply.ids)]).sum()
        entropy = -(own.exp() * own).sum(-1)
        torch.testing.assert_close(entropies[b, : len(reply.ids)], entropy.detach(), rtol=1e-4, atol=1e-5)
    for ours, plain in zip(shared, torch.autograd.grad(total, parameters), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)


def test_a_seed_repeats_and_greedy_needs_none():
    acting = policy()
    assert replies_of(acting) == replies_of(acting)
    assert replies_of(acting)[1] != replies_of(acting, seed=1)[1]
    greedy = replies_of(acting, seed=None)[1]
    assert greedy[0] == greedy[3]


def test_texts_leave_the_stop_token_out():
    acting = policy(max_new_tokens=40)
    _, replies = replies_of(acting, count=40)
    ended = [reply for reply in replies if reply.ended]
    assert ended
    assert any(not reply.ended for reply in replies)
    for reply in replies:
        assert (reply.ids[-1] in stop_ids(acting.llm)) == reply.ended
        assert "<|im_end|>" not in reply.text
        said = reply.ids[:-1] if reply.ended else reply.ids
        assert reply.text == acting.llm.tokenizer.decode(list(said), skip_special_tokens=True)


def test_a_stop_text_ends_a_reply():
    """Wherever its characters fall among the tokens; the agent does not see it, the tokens keep it."""
    free = policy(max_new_tokens=40)
    _, replies = replies_of(free, count=40)
    letter = max("aeiou", key=lambda letter: sum(letter in reply.text for reply in replies))
    stopping = GenerationPolicy(max_new_tokens=40, stop=[letter])
    stopping.bind(free.llm)
    _, stopped = replies_of(stopping, count=40, seed=None)
    _, whole = replies_of(free, count=40, seed=None)
    for one, other in zip(stopped, whole, strict=True):
        assert one.text == other.text.partition(letter)[0]
        assert one.ids == other.ids[: len(one.ids)]
        assert one.ended == (letter in other.text or other.ended)
    _, drawn = replies_of(stopping, count=40)
    assert not any(letter in reply.text for reply in drawn)
    assert any(reply.ended and letter in free.llm.tokenizer.decode(list(reply.ids)) for reply in drawn)


def test_values_are_those_at_the_prompts_ends():
    acting = policy()
    _, values = acting.reply(CONTEXTS, 0)
    torch.testing.assert_close(values, acting.values(CONTEXTS), rtol=1e-6, atol=1e-6)
    assert float(values.std()) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop": "text"}, "stop is the text 'text'"),
        ({"stop": [""]}, "none of them empty"),
        ({"responses_per_forward": 0}, "responses_per_forward is 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GenerationPolicy(**settings)


def test_what_nothing_goes_on_from_is_not_kept():
    """Keys and values of thousands of replies are gigabytes."""
    acting = policy()
    with acting.llm.frozen_weights():
        kept, _ = acting.reply(CONTEXTS, 0)
        assert sum(kv_cache.num_rows for kv_cache in acting.llm.kv_caches) == len(set(kept))
        forgotten, _ = acting.reply(CONTEXTS, 0, going_on=False)
        assert acting.llm.kv_caches == []
    assert forgotten == kept
