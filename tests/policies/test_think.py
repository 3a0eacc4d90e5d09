"""The think policy: the text and the choice are sampled and trained, the answer prefix is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import tiny
from helpers.prompts import make_prompt, response_batch
from lgym.functional import categorical_entropy
from lgym.policies import ThinkPolicy

PREFIX = " so: "
SHORT = [make_prompt("red", "a", "b"), make_prompt("green", "b", "c", "d")]
LONG = [make_prompt("red", "left", "right"), make_prompt("green", "go", "go on", "stop")]
BOTH = pytest.mark.parametrize("prompts", [SHORT, LONG], ids=["one token", "several"])


def bound_policy(llm=None, **settings) -> ThinkPolicy:
    policy = ThinkPolicy(**{"max_reasoning_tokens": 5, "answer_prefix": PREFIX, **settings})
    policy.bind(llm or tiny.llm(dtype=torch.float64))
    return policy


def respond(policy, prompts, count=8, seed=0):
    """The number of each prompt, and a response to each; greedy without a seed."""
    prompt_index = [i % 2 for i in range(count)]
    rng = None if seed is None else np.random.default_rng(seed)
    return prompt_index, policy.act([prompts[number] for number in prompt_index], rng)[0]


def choice_position(response) -> int:
    return max(position for position, chosen in enumerate(response.action_mask) if chosen)


def plain_choice_logprobs(llm, prefix_ids, candidate_ids):
    """By the transformers model alone: the sum over each candidate's tokens, renormalized."""
    scores = []
    for ids in candidate_ids:
        logits = llm.causal_lm(input_ids=torch.tensor([prefix_ids + ids])).logits[0, len(prefix_ids) - 1 : -1]
        scores.append(logits.log_softmax(-1)[range(len(ids)), list(ids)].sum())
    return torch.stack(scores).log_softmax(-1)


def ids_before_choice(prompt, response):
    return prompt.token_ids + response.history_ids[: -len(prompt.candidate_ids[response.choice])]


def test_candidates_are_those_of_the_own_prompt():
    """Two turns read alike and have other candidates. With top_k 1 they think alike too; each has its own
    choice."""
    policy = bound_policy(top_k=1)
    two, three = make_prompt("red", "a", "b"), make_prompt("red", "c", "d", "e")
    for seed in range(10):
        prompts = [two, three, two]
        for prompt, response in zip(
            prompts, policy.act(prompts, np.random.default_rng(seed))[0], strict=True
        ):
            assert response.token_ids[-1:] == prompt.candidate_ids[response.choice]
            assert response.text.endswith(prompt.candidates[response.choice])
            assert response.action_text == prompt.candidates[response.choice]


SETTINGS = [
    {},
    {"choice_temperature": 2.0},
    {"constrained_decoding": True},
    {"length_normalization": "token"},
    {"share_prefixes": False},
]


@BOTH
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_training_computes_what_was_recorded(prompts, settings):
    policy = bound_policy(**settings)
    prompt_index, responses = respond(policy, prompts)
    with torch.no_grad():
        output = policy.evaluate_actions(response_batch(prompts, prompt_index, responses))
    for row, response in zip(output.logprobs, responses, strict=True):
        count = min(len(response.token_ids), len(row))
        assert row[:count].tolist() == pytest.approx(response.logprobs[:count], abs=1e-5)


@pytest.mark.parametrize("layout", ["prefix_cache", "padded"])
def test_models_that_keep_no_keys_and_values_choose_alike(layout):
    policy = bound_policy()
    expected = respond(policy, LONG, seed=None)[1]
    policy.llm.layout = layout
    for one, other in zip(respond(policy, LONG, seed=None)[1], expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_a_response_is_text_answer_prefix_and_candidate():
    policy = bound_policy()
    tokenizer, end = policy.llm.tokenizer, policy.llm.tokenizer.eos_token_id
    for number, response in zip(*respond(policy, LONG), strict=True):
        candidate = LONG[number].candidates[response.choice]
        assert response.text.endswith(PREFIX + candidate)
        reasoning = len(response.token_ids) - len(tokenizer.encode(PREFIX + candidate))
        assert 1 <= reasoning <= 5
        assert reasoning == 5 or response.token_ids[reasoning - 1] == end
        forced = [False] * (len(candidate) - 1)
        assert response.action_mask == (*[True] * reasoning, *[False] * len(PREFIX), True, *forced)
        assert list(response.token_ids[reasoning:]) == tokenizer.encode(PREFIX + candidate)


def test_the_choice_is_the_models_own_behind_the_text():
    policy = bound_policy()
    prompt_index, responses = respond(policy, LONG, count=64)
    assert any(response.finished for response in responses)
    for number, response in zip(prompt_index, responses, strict=True):
        before = ids_before_choice(LONG[number], response)
        assert policy.llm.tokenizer.eos_token_id not in before
        expected = plain_choice_logprobs(policy.llm, before, LONG[number].candidate_ids)[response.choice]
        assert response.logprobs[choice_position(response)] == pytest.approx(
            float(expected.detach()), abs=1e-5
        )


def test_text_and_choice_learn_and_the_answer_prefix_does_not():
    """The gradient of all is that of the text's tokens and the choice, each by a plain forward pass."""
    policy = bound_policy()
    prompt_index, responses = respond(policy, SHORT, count=4)
    parameters = [p for name, p in policy.named_parameters() if "lora" in name]
    batch = response_batch(SHORT, prompt_index, responses)
    shared = torch.autograd.grad(policy.evaluate_actions(batch).logprobs.sum(), parameters)
    total = torch.zeros((), dtype=torch.float64)
    for number, response in zip(prompt_index, responses, strict=True):
        prompt, token_ids = SHORT[number].token_ids, response.token_ids
        logits = policy.llm.causal_lm(input_ids=torch.tensor([prompt + token_ids])).logits[
            0, len(prompt) - 1 : -1
        ]
        position = len(token_ids) - 1
        reasoning = position - len(PREFIX)
        total = total + logits.log_softmax(-1)[range(reasoning), list(token_ids[:reasoning])].sum()
        options = [ids[0] for ids in SHORT[number].candidate_ids]
        total = total + logits[position, options].log_softmax(-1)[response.choice]
    for one, other in zip(shared, torch.autograd.grad(total, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_a_token_that_ends_the_turn_is_learned_and_taken_out_of_the_history():
    """Behind the end of a turn no model has seen anybody answer, so the answer prefix takes that token's
    place."""
    policy = bound_policy()
    prompt, end, prefix = LONG[0], policy.llm.tokenizer.eos_token_id, policy.prefix_ids
    reasoning = tuple(policy.llm.tokenizer.encode("hm"))
    sampled = (*reasoning, end, *prefix, *prompt.candidate_ids[1])
    response = policy.demonstrated(prompt, "", sampled, 1)
    assert response.token_ids == sampled
    assert response.history_ids == (*reasoning, *prefix, *prompt.candidate_ids[1])
    logprobs = policy.evaluate_actions(response_batch(LONG, [0], [response])).logprobs[0]
    before = prompt.token_ids + reasoning
    ending = policy.llm.causal_lm(input_ids=torch.tensor([before])).logits[0, -1].log_softmax(-1)[end]
    assert float(logprobs[2]) == pytest.approx(float(ending), abs=1e-5)
    choice = plain_choice_logprobs(policy.llm, before + prefix, prompt.candidate_ids)[1]
    position = len(reasoning) + 1 + len(prefix)
    assert float(logprobs[position]) == pytest.approx(float(choice), abs=1e-5)


def test_a_demonstration_without_reasoning_is_the_choice_alone():
    policy = bound_policy()
    response = policy.demonstrated(LONG[1], "go on", (), 1)
    assert response.token_ids == policy.prefix_ids + LONG[1].candidate_ids[1]
    assert sum(response.action_mask) == 1
    assert choice_position(response) == len(PREFIX)


def test_a_stop_text_ends_the_reasoning():
    policy = bound_policy(max_reasoning_tokens=40)
    letter = respond(policy, SHORT, seed=None)[1][0].text[3]
    stopping = bound_policy(policy.llm, max_reasoning_tokens=40, stop=[letter])
    for response in respond(stopping, SHORT, seed=None)[1]:
        assert letter not in response.text.removesuffix(PREFIX + response.text[-1])


def test_a_seed_repeats():
    policy = bound_policy()
    first, again, other = (list(map(vars, respond(policy, LONG, seed=seed)[1])) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_an_empty_answer_prefix_is_refused():
    with pytest.raises(ValueError, match="answer_prefix is empty"):
        ThinkPolicy(answer_prefix="")


@BOTH
def test_text_choice_and_answer_prefix_have_their_own_entropy(prompts):
    """By the transformers model alone. Catches the choice's entropy left out, one over the vocabulary in its
    place, and an entropy on the answer prefix, which nobody chose."""
    policy = bound_policy()
    prompt_index, responses = respond(policy, prompts)
    with torch.no_grad():
        entropies = policy.evaluate_actions(response_batch(prompts, prompt_index, responses)).entropy
        choice_entropies = []
        for row, number, response in zip(entropies, prompt_index, responses, strict=True):
            prompt = prompts[number]
            before = ids_before_choice(prompt, response)
            logits = policy.llm.causal_lm(input_ids=torch.tensor([before])).logits[0]
            reasoning = sum(response.action_mask) - 1
            expected = torch.zeros(len(row), dtype=row.dtype)
            token_entropies = categorical_entropy(logits.log_softmax(-1))[len(prompt.token_ids) - 1 :]
            expected[:reasoning] = token_entropies[:reasoning]
            choice = plain_choice_logprobs(policy.llm, before, prompt.candidate_ids)
            expected[choice_position(response)] = -(choice.exp() * choice).sum()
            torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)
            choice_entropies.append(float(expected[choice_position(response)]))
    assert max(choice_entropies) > 0.1


def test_the_entropy_bonus_has_the_choices_gradient():
    """Catches an entropy of the choice without gradient: it is the choice's own, by a plain forward pass."""
    policy = bound_policy()
    prompt_index, responses = respond(policy, SHORT, count=2)
    parameters = [p for name, p in policy.named_parameters() if "lora" in name]
    batch = response_batch(SHORT, prompt_index, responses)
    shared, total = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    entropies = policy.evaluate_actions(batch, entropy_gradient=True).entropy
    for row, number, response in zip(entropies, prompt_index, responses, strict=True):
        sequence = SHORT[number].token_ids + response.token_ids
        logits = policy.llm.causal_lm(input_ids=torch.tensor([sequence])).logits[0]
        options = [ids[0] for ids in SHORT[number].candidate_ids]
        shared = shared + row[len(response.token_ids) - 1]
        total = total + categorical_entropy(logits[-2, options].log_softmax(-1))
    plain = torch.autograd.grad(total, parameters)
    assert sum(float(gradient.abs().sum()) for gradient in plain) > 0
    for one, other in zip(torch.autograd.grad(shared, parameters), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
