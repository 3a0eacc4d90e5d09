"""The generation policy: training computes the log-probabilities that were recorded, and both are the model's
own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import tiny
from helpers.prompts import make_prompt, response_batch
from lgym.policies import GenerationPolicy
from lgym.policies.text_generation import stop_ids

PROMPTS = [make_prompt("red"), make_prompt("green"), make_prompt("a long way round")]


def bound_policy(**settings) -> GenerationPolicy:
    policy = GenerationPolicy(**{"max_new_tokens": 9, **settings})
    policy.bind(tiny.llm(dtype=torch.float64))
    return policy


def respond(policy, count=8, seed=0):
    """The number of each prompt, and a response to each; greedy without a seed."""
    prompt_index = [i % 3 for i in range(count)]
    rng = None if seed is None else np.random.default_rng(seed)
    return prompt_index, policy.act([PROMPTS[number] for number in prompt_index], rng)[0]


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.6}, {"responses_per_forward": 3}, {"share_prefixes": False}], ids=str
)
def test_training_computes_what_was_recorded(settings):
    """`policy/logprob_diff_max` is 0: no padding, position or temperature comes between rollout and
    update."""
    policy = bound_policy(**settings)
    prompt_index, responses = respond(policy)
    with torch.no_grad():
        logprobs = policy.evaluate_actions(response_batch(PROMPTS, prompt_index, responses)).logprobs
    for row, response in zip(logprobs, responses, strict=True):
        count = len(response.token_ids)
        torch.testing.assert_close(row[:count].float(), torch.tensor(response.logprobs), rtol=1e-4, atol=1e-5)
        assert (row[count:] == 0).all()


def test_gradients_equal_those_of_one_full_pass_per_response():
    """Shared prompts, gathered: the adapters must learn from every response's every token, once."""
    policy = bound_policy()
    prompt_index, responses = respond(policy)
    weights = torch.linspace(-1, 1, 9, dtype=torch.float64)
    parameters = [p for name, p in policy.named_parameters() if "lora" in name]
    output = policy.evaluate_actions(response_batch(PROMPTS, prompt_index, responses))
    shared = torch.autograd.grad((output.logprobs * weights[: output.logprobs.shape[1]]).sum(), parameters)
    total = torch.zeros((), dtype=torch.float64)
    for b, (number, response) in enumerate(zip(prompt_index, responses, strict=True)):
        prompt, token_ids = PROMPTS[number].token_ids, response.token_ids
        logits = policy.llm.causal_lm(input_ids=torch.tensor([prompt + token_ids])).logits[
            0, len(prompt) - 1 : -1
        ]
        logprobs = logits.log_softmax(-1)
        total = total + (logprobs[range(len(token_ids)), list(token_ids)] * weights[: len(token_ids)]).sum()
        entropy = -(logprobs.exp() * logprobs).sum(-1).detach()
        torch.testing.assert_close(output.entropy[b, : len(token_ids)], entropy, rtol=1e-4, atol=1e-5)
    for one, other in zip(shared, torch.autograd.grad(total, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_repeated_response_is_computed_once():
    """Its rows are the same, and cost nothing; equal tokens behind another prompt are another response."""
    policy = bound_policy(share_prefixes=False)  # which would share equal sequences as well
    _, (response, *_) = respond(policy, count=1)
    batch = response_batch(PROMPTS[:2], [0, 0, 0, 1], [response] * 4)
    policy.llm.tokens_computed = 0
    with torch.no_grad():
        logprobs = policy.evaluate_actions(batch).logprobs
        computed, policy.llm.tokens_computed = policy.llm.tokens_computed, 0
        policy.evaluate_actions(response_batch(PROMPTS[:2], [0, 1], [response] * 2))
    assert computed == policy.llm.tokens_computed
    assert torch.equal(logprobs[0], logprobs[1])
    assert torch.equal(logprobs[0], logprobs[2])
    assert not torch.equal(logprobs[0], logprobs[3])


def test_a_seed_repeats_and_greedy_needs_none():
    policy = bound_policy()
    first, again, other = (list(map(vars, respond(policy, seed=seed)[1])) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    greedy = respond(policy, seed=None)[1]
    assert vars(greedy[0]) == vars(greedy[3])


def test_texts_leave_the_stop_token_out():
    policy = bound_policy(max_new_tokens=40)
    _, responses = respond(policy, count=40)
    assert any(response.finished for response in responses)
    assert any(not response.finished for response in responses)
    for response in responses:
        assert (response.token_ids[-1] in stop_ids(policy.llm)) == response.finished
        assert "<|im_end|>" not in response.text
        text_ids = response.token_ids[:-1] if response.finished else response.token_ids
        assert response.text == policy.llm.tokenizer.decode(list(text_ids), skip_special_tokens=True)


def test_a_stop_text_ends_a_response():
    """Wherever its characters fall among the tokens; the agent does not see it, the tokens keep it."""
    free = bound_policy(max_new_tokens=40)
    _, responses = respond(free, count=40)
    letter = max("aeiou", key=lambda letter: sum(letter in response.text for response in responses))
    stopping = GenerationPolicy(max_new_tokens=40, stop=[letter])
    stopping.bind(free.llm)
    _, stopped = respond(stopping, count=40, seed=None)
    _, whole = respond(free, count=40, seed=None)
    for one, other in zip(stopped, whole, strict=True):
        assert one.text == other.text.partition(letter)[0]
        assert one.token_ids == other.token_ids[: len(one.token_ids)]
        assert one.finished == (letter in other.text or other.finished)
    _, sampled = respond(stopping, count=40)
    assert not any(letter in response.text for response in sampled)
    decode = free.llm.tokenizer.decode
    assert any(response.finished and letter in decode(list(response.token_ids)) for response in sampled)


def test_values_are_those_at_the_ends_of_prompts():
    policy = bound_policy()
    _, values = policy.act(PROMPTS, np.random.default_rng(0))
    torch.testing.assert_close(values, policy.values(PROMPTS), rtol=1e-6, atol=1e-6)
    assert float(values.std()) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop": "text"}, "stop is 'text'; it must be a list"),
        ({"stop": [""]}, "none of them empty"),
        ({"responses_per_forward": 0}, "responses_per_forward is 0"),
        ({"kv_cache_tokens": 0}, "kv_cache_tokens is 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GenerationPolicy(**settings)


def test_keys_and_values_are_kept_only_where_prompts_extend():
    """The keys and values of thousands of responses are gigabytes."""
    policy = bound_policy()
    with policy.llm.frozen_weights():
        kept, _ = policy.act(PROMPTS, np.random.default_rng(0))
        assert sum(kv_cache.num_rows for kv_cache in policy.llm.kv_caches) == len({r.token_ids for r in kept})
        forgotten, _ = policy.act(PROMPTS, np.random.default_rng(0), keep_kv_cache=False)
        assert policy.llm.kv_caches == []
    assert list(map(vars, forgotten)) == list(map(vars, kept))
