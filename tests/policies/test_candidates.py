"""The candidate policy against one full forward per candidate, in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from helpers import tiny
from lgym.batch import Context
from lgym.models import LLMConfig
from lgym.models.build import assemble_llm
from lgym.models.registry import DEFAULT
from lgym.policies import CandidatePolicy

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def context(prompt: str, *candidates: str) -> Context:
    encode = tiny.tokenizer().encode
    return Context(
        prompt_ids=tuple(encode("<|im_start|>user\nyou see " + prompt)),
        candidate_ids=tuple(tuple(encode(text)) for text in candidates),
        candidates=candidates,
        observation_text=prompt,
    )


MIXED = [
    context("a door", "go", "go north", "look"),
    context("a dragon", "run", "a"),
    context("a door and a key", "take the key", "open it", "x", "go"),
    context("nothing", "wait"),
]
SINGLE = [context("a red", "r", "g", "b"), context("a green one", "g", "b"), context("a blue", "b", "r", "g")]


def policy_for(llm, **settings) -> CandidatePolicy:
    policy = CandidatePolicy(**settings)
    policy.bind(llm)
    return policy


def by_full_forwards(llm, contexts, normalisation, temperature=1.0):
    """Lists of log-probabilities: a full forward of prompt + candidate each, softmax over the candidates."""
    found = []
    for c in contexts:
        scores = []
        for text, ids in zip(c.candidates, c.candidate_ids, strict=True):
            sequence = torch.tensor([c.prompt_ids + ids])
            predicted = llm.causal_lm(input_ids=sequence).logits[:, len(c.prompt_ids) - 1 : -1].log_softmax(-1)
            logprob = predicted.gather(-1, torch.tensor(ids)[None, :, None]).sum()
            length = {"sum": 1, "token": len(ids), "word": len(text.split())}[normalisation]
            scores.append(logprob / length / temperature)
        found.append(torch.stack(scores).log_softmax(0))
    return found


@pytest.mark.parametrize("normalisation", ["sum", "token", "word"])
@pytest.mark.parametrize("contexts", [MIXED, SINGLE, MIXED[3:]], ids=["mixed", "single-token", "one-candidate"])
@pytest.mark.parametrize("share", [True, False])
def test_equals_one_full_forward_per_candidate(llm, contexts, normalisation, share):
    """GLAM summed raw logits, so short answers won; a skipped normalizer or a wrong place shows here."""
    policy = policy_for(llm, normalisation=normalisation, temperature=0.7, share_prefixes=share, row_length=24)
    logprobs, _ = policy(contexts)
    for row, expected in zip(logprobs, by_full_forwards(llm, contexts, normalisation, 0.7), strict=True):
        torch.testing.assert_close(row[: len(expected)], expected, **TOLERANCE)
        assert (row[len(expected) :] == -torch.inf).all()


def test_gradients_equal_those_of_full_forwards(llm):
    """Sharing must not lose a path of the gradient."""
    parameters = [p for n, p in llm.named_parameters() if "lora" in n]
    logprobs, _ = policy_for(llm)(MIXED)
    ours = torch.autograd.grad(sum(row[0] for row in logprobs[:3]), parameters)
    plain = torch.autograd.grad(sum(row[0] for row in by_full_forwards(llm, MIXED[:3], "sum")), parameters)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_batched_equals_one_at_a_time(llm):
    """What else is in the batch must not matter."""
    policy = policy_for(llm, tokens_per_forward=40)
    logprobs, values = policy.evaluate(MIXED + SINGLE)
    for i, c in enumerate(MIXED + SINGLE):
        alone, value = policy.evaluate([c])
        torch.testing.assert_close(logprobs[i, : len(c.candidates)], alone[0], **TOLERANCE)
        torch.testing.assert_close(values[i], value[0], **TOLERANCE)


def test_normalisations_differ(llm):
    """A flag without effect would be worse than none."""
    sums, tokens, words = (policy_for(llm, normalisation=n)(MIXED)[0][2, :4] for n in ("sum", "token", "word"))
    assert (sums - tokens).abs().max() > 0.1
    assert (sums - words).abs().max() > 0.1
    assert (tokens - words).abs().max() > 0.1


def test_temperature_flattens(llm):
    """At a very high temperature all candidates are as likely as each other: log 1/3 each."""
    logprobs, _ = policy_for(llm, temperature=1e6)(MIXED[:1])
    torch.testing.assert_close(logprobs[0], torch.full((3,), -math.log(3), dtype=torch.float64), atol=1e-4, rtol=0)


def test_the_shared_prompt_is_encoded_once(llm):
    """42 candidates of one token must cost what 2 cost: the prompt, once."""
    encode = tiny.tokenizer().encode
    many = Context(tuple(encode("you see")), tuple((i,) for i in range(42)), tuple(map(str, range(42))), "")
    llm.tokens_computed = 0
    policy_for(llm)([many])
    assert llm.tokens_computed == len(many.prompt_ids)


def test_candidates_of_several_tokens_cost_their_distinct_tokens(llm):
    """`go north`, `go south`: the prompt, then 'go ' once and all but the last token of each rest."""
    both = context("a", "go north", "go south")
    llm.tokens_computed = 0
    policy_for(llm)([both])
    assert llm.tokens_computed == len(both.prompt_ids) + len("go ") + len("nort") + len("sout")


def test_gradient_checkpointing_changes_nothing():
    """It switches the cached prefix off; results must stay."""
    plain = tiny.llm(dtype=torch.float64)
    config = LLMConfig(model="tiny", gradient_checkpointing=True, value_hidden_size=16)
    config.lora.r = 4
    saving = assemble_llm(tiny.causal_lm(torch.float64), tiny.tokenizer(), config, DEFAULT)
    saving.load_state_dict(plain.state_dict())
    saving.double().train()
    a, b = policy_for(plain)(MIXED)[0], policy_for(saving)(MIXED)[0]
    torch.testing.assert_close(a, b.to(a.dtype), rtol=1e-4, atol=1e-4)
    b[0, 0].backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in saving.parameters())


@pytest.mark.parametrize("template", ["gpt2", "gpt_neox"])
def test_other_architectures(template):
    """Learned positions (GPT-2) and fused projections (GPT-NeoX) take the same packed rows."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(template, vocab_size=260, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    if template == "gpt_neox":
        config.intermediate_size = 64
    config.attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    llm = assemble_llm(model, tiny.tokenizer(), LLMConfig(model=template, value_hidden_size=8), DEFAULT)
    logprobs, _ = policy_for(llm)(MIXED)
    for row, expected in zip(logprobs, by_full_forwards(llm, MIXED, "sum"), strict=True):
        torch.testing.assert_close(row[: len(expected)], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"row_length": 0}, {"tokens_per_forward": 0}])
def test_bad_settings_are_refused(settings):
    """A temperature of 0 would divide by zero in mid-run."""
    with pytest.raises(ValueError, match=next(iter(settings))):
        CandidatePolicy(**settings)


def following(before: Context, choice: int, more: str, *candidates: str) -> Context:
    """The question behind an earlier one, the answer to it and what came of that."""
    new = context(more, *candidates)
    return replace(new, prompt_ids=before.prompt_ids + before.candidate_ids[choice] + new.prompt_ids)


def conversations(turns: int) -> list[list[Context]]:
    """What is asked turn by turn in four conversations: one begins a turn late as another did, two begin alike."""
    rounds = [[MIXED[0], MIXED[1], MIXED[2], MIXED[2]]]
    for turn in range(1, turns):
        first, second, third, fourth = rounds[-1]
        now = following(third, turn % 2, f"turn {turn}", "go on", "go back", "stop")
        rounds.append(
            [
                following(first, 0, "a wall" * turn, "go", "go north", "look"),
                MIXED[0] if turn == 1 else following(second, 1, "a lake", "swim", "s"),
                now,
                now if turn == 1 else following(fourth, 0, "an end", "x"),
            ]
        )
    return rounds


@pytest.mark.parametrize("normalisation", ["sum", "trie"])
@pytest.mark.parametrize("tokens_per_forward", [1024, 40])
def test_conversations_go_on_from_what_was_kept(llm, normalisation, tokens_per_forward):
    """As if every prompt were run whole; the candidates that were not taken leave no trace."""
    policy = policy_for(llm, normalisation=normalisation, tokens_per_forward=tokens_per_forward)
    with llm.frozen_weights():
        for now in conversations(4):
            distinct = list(dict.fromkeys(now))
            logprobs, values = policy.evaluate(distinct, going_on=now)
            expected, expected_values = policy(distinct)
            torch.testing.assert_close(logprobs, expected, **TOLERANCE)
            torch.testing.assert_close(values, expected_values, **TOLERANCE)


def test_a_turn_costs_its_new_tokens(llm, monkeypatch):
    """By counting, also of one that stands still while the others go on: its prompt stays known. A pass takes new tokens
    alone into account: whole prompts would take two."""
    policy, (opening, *later) = policy_for(llm, tokens_per_forward=160), conversations(3)
    go_on, passes = policy._go_on, []
    monkeypatch.setattr(policy, "_go_on", lambda contexts: passes.append(len(contexts)) or go_on(contexts))
    still = context("nobody", "a", "b")
    with llm.frozen_weights():
        policy.evaluate([*dict.fromkeys(opening), still], going_on=[*opening, still])
        for before, now in zip([opening, *later], later, strict=False):
            fresh = [c for c in dict.fromkeys(now) if c is not MIXED[0]]
            llm.tokens_computed = 0
            passes.clear()
            policy.evaluate(fresh, going_on=[*now, still])
            assert passes == [len(fresh)]
            new = [min(len(c.prompt_ids) - len(b.prompt_ids) for b in before if goes_on(c, b)) for c in fresh]
            assert llm.tokens_computed == sum(new) + sum(map(branches, fresh))
        after = following(still, 0, "somebody", "a", "b")
        llm.tokens_computed = 0
        policy.evaluate([after], going_on=[after])
        assert llm.tokens_computed == len(after.prompt_ids) - len(still.prompt_ids)


def goes_on(later: Context, earlier: Context) -> bool:
    return later.prompt_ids[: len(earlier.prompt_ids)] == earlier.prompt_ids


def branches(asked: Context) -> int:
    """Distinct beginnings of its candidates that have to be run: all but whole ones."""
    return len({ids[:length] for ids in asked.candidate_ids for length in range(1, len(ids))})


def test_nothing_is_kept_where_nothing_goes_on(llm):
    """Nor while the weights may change."""
    policy = policy_for(llm)
    with llm.frozen_weights():
        policy.evaluate(MIXED)
        assert llm.kv_caches == []
    policy.evaluate(MIXED, going_on=MIXED)
    assert llm.kv_caches == []
