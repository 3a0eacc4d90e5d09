"""How much is computed and held at once: bounded in tokens, whatever prompts are like, and with the same
results."""

from __future__ import annotations

import random

import pytest
import torch

from helpers import tiny
from lgym.models.prefix_sharing import prefill
from lgym.models.prefix_sharing.kv_cache import kv_bytes_per_token
from lgym.models.prefix_sharing.packing import split_micro_batches
from lgym.policies import CandidatePolicy, GenerationPolicy, text_generation
from lgym.policies import candidates as candidate_policy
from lgym.policies import policy as policy_module
from lgym.rollout import Prompt

RULES = tuple(range(60, 90))


def prompts_of(own: int, candidates: int, length: int, count: int = 12) -> list[Prompt]:
    """Prompts with 30 tokens in common and so many of their own."""
    rng = random.Random(own)
    return [
        Prompt(
            (*RULES, *(rng.randrange(250) for _ in range(own))),
            tuple((c, *(rng.randrange(250) for _ in range(length - 1))) for c in range(candidates)),
            tuple(map(str, range(candidates))),
            "",
        )
        for _ in range(count)
    ]


def passes_of(llm, monkeypatch) -> list[int]:
    """Tokens of each pass that the model runs from now on."""
    sizes: list[int] = []
    run = type(llm)._run_row

    def counted(self, token_ids, *args):
        sizes.append(len(token_ids))
        return run(self, token_ids, *args)

    monkeypatch.setattr(type(llm), "_run_row", counted)
    return sizes


@pytest.mark.parametrize("own", [10, 60, 200, 1000])
@pytest.mark.parametrize(("candidates", "length"), [(2, 1), (12, 4), (40, 4)])
def test_a_pass_keeps_to_its_bound(monkeypatch, own, candidates, length):
    """`tokens_per_forward: 1024` took passes of 9,792 where prompts had 60 tokens of their own."""
    policy = CandidatePolicy(tokens_per_forward=1024)
    policy.bind(tiny.llm())
    sizes = passes_of(policy.llm, monkeypatch)
    with policy.llm.frozen_weights():
        policy.distributions(prompts_of(own, candidates, length))
    assert max(sizes) <= 1.5 * 1024
    assert sum(sizes) <= 1.15 * distinct(prompts_of(own, candidates, length))


def distinct(asked: list[Prompt]) -> int:
    """Tokens that are different in their sequences: of a candidate all but the last, which is only asked
    for."""
    paths = {(*c.token_ids, *ids[:-1]) for c in asked for ids in c.candidate_ids}
    return len({path[: n + 1] for path in paths for n in range(len(path))})


def test_prompts_are_shared_out_by_what_is_new_of_them():
    """Ten tokens each behind 30 in common: 40 tokens take 4, and 2 more of what is known of one already."""
    prompts = [c.token_ids for c in prompts_of(10, 0, 0, count=6)]
    assert [len(part) for part in split_micro_batches(prompts, 40)] == [4, 2]
    assert [len(part) for part in split_micro_batches(prompts, 40, extra_tokens=[30] * 6)] == [1] * 6
    assert [len(part) for part in split_micro_batches(prompts, 40, cached_lengths=[35] * 6)] == [6]
    assert sorted(i for part in split_micro_batches(prompts, 40) for i in part) == list(range(6))


@pytest.mark.parametrize("bound", [1, 100, 65_536])
def test_what_is_written_at_once_is_bounded_in_tokens(monkeypatch, bound):
    """16 prompts of 1,500 tokens took 2.3 GB, and 256 were written to at once. Replies are the same,
    greedily."""
    asked = prompts_of(20, 0, 0)
    held = []
    write = text_generation.generate

    def counted(llm, prompts, **options):
        held.append(sum(len(set(prompt[30:])) and len(prompt) - 30 + 4 for prompt in prompts))
        return write(llm, prompts, **options)

    monkeypatch.setattr(text_generation, "generate", counted)
    policy = GenerationPolicy(max_new_tokens=4, kv_cache_tokens=bound)
    policy.bind(tiny.llm(dtype=torch.float64))
    replies, _ = policy.act(asked, None)
    expected = GenerationPolicy(max_new_tokens=4)
    expected.bind(policy.llm)
    assert len(held) == {1: 12, 100: 3, 65_536: 1}[bound]  # 24 tokens each: 4 of them fit 100
    assert [reply.token_ids for reply in replies] == [
        reply.token_ids for reply in expected.act(asked, None)[0]
    ]


def test_each_response_to_a_prompt_counts(monkeypatch):
    """Four responses to each of three prompts, of 24 tokens each: 200 tokens hold those to two prompts. The
    bound was exceeded by the size of a group."""
    asked = [prompt for prompt in prompts_of(20, 0, 0, count=3) for _ in range(4)]
    sizes = []
    write = text_generation.generate

    def counted(llm, prompts, **options):
        sizes.append(len(prompts))
        return write(llm, prompts, **options)

    monkeypatch.setattr(text_generation, "generate", counted)
    policy = GenerationPolicy(max_new_tokens=4, kv_cache_tokens=200)
    policy.bind(tiny.llm())
    policy.act(asked, None)
    assert sizes == [8, 4]


def test_new_prompts_and_values_are_run_in_parts(monkeypatch):
    """All new prompts were one pass, and 256 whole prompts one pass for their values."""
    for module in (prefill, policy_module, candidate_policy):
        monkeypatch.setattr(module, "tokens_per_forward", lambda device: 64)
    policy = GenerationPolicy(max_new_tokens=2)
    policy.bind(tiny.llm(dtype=torch.float64))
    asked = prompts_of(20, 0, 0)
    whole = [
        policy.llm.values(
            policy.llm.causal_lm.base_model(torch.tensor([c.token_ids])).last_hidden_state[0, -1]
        )
        for c in asked
    ]
    sizes = passes_of(policy.llm, monkeypatch)
    with torch.no_grad(), policy.llm.frozen_weights():
        values = policy.values(asked)
        assert max(sizes) <= 64 + 30
        sizes.clear()
        _, ends = policy.act(asked, None)
    assert max(sizes) <= 64 + 30
    torch.testing.assert_close(values, torch.stack(whole).detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ends, values, rtol=1e-6, atol=1e-8)


def test_what_keys_and_values_take():
    """SmolLM2-135M: 2 x 30 layers x 3 heads x 64 numbers of 2 bytes are 23,040."""
    config = tiny.config(num_hidden_layers=30, num_key_value_heads=3, num_attention_heads=9, hidden_size=576)
    assert kv_bytes_per_token(config, torch.bfloat16) == 23_040
