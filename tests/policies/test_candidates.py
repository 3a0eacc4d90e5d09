"""The candidate policy against one full forward pass per candidate, in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import tiny
from helpers.prompts import make_prompt, response_batch
from lgym.functional import categorical_entropy, categorical_kl
from lgym.models import LLMConfig
from lgym.models.build import assemble_llm
from lgym.models.registry import DEFAULT
from lgym.policies import CandidatePolicy
from lgym.rollout import Prompt

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}

MIXED = [
    make_prompt("a door", "go", "go north", "look"),
    make_prompt("a dragon", "run", "a"),
    make_prompt("a door and a key", "take the key", "open it", "x", "go"),
    make_prompt("nothing", "wait"),
]
SINGLE = [
    make_prompt("a red", "r", "g", "b"),
    make_prompt("a green one", "g", "b"),
    make_prompt("a blue", "b", "r", "g"),
]


def policy_for(llm, **settings) -> CandidatePolicy:
    policy = CandidatePolicy(**settings)
    policy.bind(llm)
    return policy


def by_full_forwards(llm, prompts, normalization="none", temperature=1.0):
    """Lists of log-probabilities: a full forward of prompt + candidate each, softmax over the candidates."""
    distributions = []
    for prompt in prompts:
        scores = []
        for text, ids in zip(prompt.candidates, prompt.candidate_ids, strict=True):
            sequence = torch.tensor([prompt.token_ids + ids])
            logits = llm.causal_lm(input_ids=sequence).logits[:, len(prompt.token_ids) - 1 : -1]
            logprob = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[None, :, None]).sum()
            length = {"none": 1, "token": len(ids), "word": len(text.split())}[normalization]
            scores.append(logprob / length / temperature)
        distributions.append(torch.stack(scores).log_softmax(0))
    return distributions


@pytest.mark.parametrize("normalization", ["none", "token", "word"])
@pytest.mark.parametrize(
    "prompts", [MIXED, SINGLE, MIXED[3:]], ids=["mixed", "single-token", "one-candidate"]
)
@pytest.mark.parametrize("share_prefixes", [True, False])
def test_equals_one_full_forward_per_candidate(llm, prompts, normalization, share_prefixes):
    """GLAM summed raw logits, so short answers won; a skipped normalizer or a wrong position shows here."""
    settings = {"temperature": 0.7, "share_prefixes": share_prefixes, "row_length": 24}
    logprobs, _ = policy_for(llm, length_normalization=normalization, **settings)(prompts)
    for row, expected in zip(logprobs, by_full_forwards(llm, prompts, normalization, 0.7), strict=True):
        torch.testing.assert_close(row[: len(expected)], expected, **TOLERANCE)
        assert (row[len(expected) :] == -torch.inf).all()


def test_gradients_equal_those_of_full_forwards(llm):
    """Sharing must not lose a path of the gradient."""
    parameters = [p for n, p in llm.named_parameters() if "lora" in n]
    logprobs, _ = policy_for(llm)(MIXED)
    shared = torch.autograd.grad(sum(row[0] for row in logprobs[:3]), parameters)
    plain = torch.autograd.grad(sum(row[0] for row in by_full_forwards(llm, MIXED[:3])), parameters)
    for one, other in zip(shared, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_batched_equals_one_at_a_time(llm):
    """The other prompts of a batch must not matter."""
    policy = policy_for(llm, tokens_per_forward=40)
    logprobs, values = policy.distributions(MIXED + SINGLE), policy.values(MIXED + SINGLE)
    for row, value, prompt in zip(logprobs, values, MIXED + SINGLE, strict=True):
        torch.testing.assert_close(
            row[: len(prompt.candidates)], policy.distributions([prompt])[0], **TOLERANCE
        )
        torch.testing.assert_close(value, policy.values([prompt])[0], **TOLERANCE)


def test_length_normalizations_differ(llm):
    """A flag without effect would be worse than none."""
    none, token, word = (
        policy_for(llm, length_normalization=length)(MIXED)[0][2, :4] for length in ("none", "token", "word")
    )
    assert (none - token).abs().max() > 0.1
    assert (none - word).abs().max() > 0.1
    assert (token - word).abs().max() > 0.1


def test_temperature_flattens(llm):
    """At a very high temperature all candidates are as likely as each other: log 1/3 each."""
    logprobs, _ = policy_for(llm, temperature=1e6)(MIXED[:1])
    torch.testing.assert_close(
        logprobs[0], torch.full((3,), -math.log(3), dtype=torch.float64), atol=1e-4, rtol=0
    )


def test_the_shared_prompt_is_computed_once(llm):
    """42 candidates of one token must cost what 2 cost: the prompt, once."""
    prompt = Prompt(
        tuple(tiny.tokenizer().encode("you see")),
        tuple((i,) for i in range(42)),
        tuple(map(str, range(42))),
        "",
    )
    llm.tokens_computed = 0
    policy_for(llm)([prompt])
    assert llm.tokens_computed == len(prompt.token_ids)


def test_candidates_of_several_tokens_cost_their_distinct_tokens(llm):
    """`go north`, `go south`: the prompt, then 'go ' once and all but the last token of each rest."""
    prompt = make_prompt("a", "go north", "go south")
    llm.tokens_computed = 0
    policy_for(llm)([prompt])
    assert llm.tokens_computed == len(prompt.token_ids) + len("go ") + len("nort") + len("sout")


def test_gradient_checkpointing_changes_nothing():
    """It switches the cached prefix off; results must stay."""
    plain = tiny.llm(dtype=torch.float64)
    config = LLMConfig(model="tiny", gradient_checkpointing=True, value_hidden_size=16)
    config.lora.r = 4
    checkpointed = assemble_llm(tiny.causal_lm(torch.float64), tiny.tokenizer(), config, DEFAULT)
    checkpointed.load_state_dict(plain.state_dict())
    checkpointed.double().train()
    expected, logprobs = policy_for(plain)(MIXED)[0], policy_for(checkpointed)(MIXED)[0]
    torch.testing.assert_close(expected, logprobs.to(expected.dtype), rtol=1e-4, atol=1e-4)
    logprobs[0, 0].backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in checkpointed.parameters())


@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neox"])
def test_other_architectures(architecture):
    """Learned positions (GPT-2) and fused projections (GPT-NeoX) take the same packed rows."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 260, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model(architecture, **sizes)
    if architecture == "gpt_neox":
        config.intermediate_size = 64
    config.attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    llm = assemble_llm(model, tiny.tokenizer(), LLMConfig(model=architecture, value_hidden_size=8), DEFAULT)
    logprobs, _ = policy_for(llm)(MIXED)
    for row, expected in zip(logprobs, by_full_forwards(llm, MIXED), strict=True):
        torch.testing.assert_close(row[: len(expected)], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"row_length": 0}, {"tokens_per_forward": 0}])
def test_bad_settings_are_refused(settings):
    """A temperature of 0 would divide by zero during a run."""
    with pytest.raises(ValueError, match=next(iter(settings))):
        CandidatePolicy(**settings)


def test_choices_are_recorded_with_their_distribution(llm):
    """The response has the candidate's tokens, its log-probability at the first of them and the whole
    distribution; equal choices are one object. Greedy takes the likeliest candidate."""
    policy = policy_for(llm)
    expected = by_full_forwards(llm, MIXED)
    with llm.frozen_weights():
        responses, values = policy.act(MIXED + MIXED, np.random.default_rng(0))
        greedy, _ = policy.act(MIXED, None)
        again, _ = policy.act(MIXED, None)
    torch.testing.assert_close(values, policy.values(MIXED + MIXED))
    assert [response.choice for response in greedy] == [int(logprobs.argmax()) for logprobs in expected]
    assert all(one is other for one, other in zip(greedy, again, strict=True))
    for prompt, response, logprobs in zip(MIXED + MIXED, responses, expected + expected, strict=True):
        token_ids = prompt.candidate_ids[response.choice]
        assert response.token_ids == token_ids
        assert response.text == response.action_text == prompt.candidates[response.choice]
        assert response.finished
        assert response.action_mask == (True, *[False] * (len(token_ids) - 1))
        assert response.candidate_logprobs == pytest.approx(logprobs.tolist(), abs=1e-5)
        assert response.logprobs == (
            response.candidate_logprobs[response.choice],
            *[0.0] * (len(token_ids) - 1),
        )


def test_training_computes_what_was_recorded(llm):
    """Log-probability, entropy and exact divergences of each choice, and its value, from the
    distributions."""
    policy, prompt_index = policy_for(llm), [0, 0, 1, 2, 3]
    prompts = [MIXED[number] for number in prompt_index]
    with llm.frozen_weights():
        responses, recorded_values = policy.act(prompts, np.random.default_rng(0))
    logprobs, values = policy(MIXED)
    behavior, reference = torch.full_like(logprobs, -torch.inf), torch.full_like(logprobs, -torch.inf)
    for row, count in enumerate(len(prompt.candidates) for prompt in MIXED):
        behavior[row, :count] = torch.arange(count).double().log_softmax(0)
        reference[row, :count] = (-behavior[row, :count]).log_softmax(0)
    batch = response_batch(MIXED, prompt_index, responses)
    output = policy.evaluate_actions(
        replace(batch, old_candidate_logprobs=behavior, ref_candidate_logprobs=reference)
    )
    assert output.logprobs.flatten().tolist() == pytest.approx([r.logprobs[0] for r in responses], abs=1e-5)
    assert output.values.flatten().tolist() == pytest.approx(recorded_values.tolist(), abs=1e-5)
    torch.testing.assert_close(output.entropy, categorical_entropy(logprobs)[prompt_index][:, None])
    torch.testing.assert_close(output.old_kl, categorical_kl(behavior, logprobs)[prompt_index][:, None])
    torch.testing.assert_close(output.ref_kl, categorical_kl(logprobs, reference)[prompt_index][:, None])
    torch.testing.assert_close(output.candidate_logprobs, logprobs)
    assert policy.evaluate_actions(batch).old_kl is None


def follow(before: Prompt, choice: int, text: str, *candidates: str) -> Prompt:
    """The prompt that extends an earlier one by the answer to it and the next observation."""
    new = make_prompt(text, *candidates)
    return replace(new, token_ids=before.token_ids + before.candidate_ids[choice] + new.token_ids)


def conversations(turns: int) -> list[list[Prompt]]:
    """The prompts turn by turn of four conversations: one begins a turn late as another did, two begin
    alike."""
    rounds = [[MIXED[0], MIXED[1], MIXED[2], MIXED[2]]]
    for turn in range(1, turns):
        first, second, third, fourth = rounds[-1]
        extended = follow(third, turn % 2, f"turn {turn}", "go on", "go back", "stop")
        rounds.append(
            [
                follow(first, 0, "a wall" * turn, "go", "go north", "look"),
                MIXED[0] if turn == 1 else follow(second, 1, "a lake", "swim", "s"),
                extended,
                extended if turn == 1 else follow(fourth, 0, "an end", "x"),
            ]
        )
    return rounds


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("tokens_per_forward", [1024, 40])
def test_conversations_extend_the_kept_keys_and_values(llm, constrained, tokens_per_forward):
    """The same as with every prompt run whole; the candidates that were not taken leave no trace."""
    policy = policy_for(llm, constrained_decoding=constrained, tokens_per_forward=tokens_per_forward)
    with llm.frozen_weights():
        for prompts in conversations(4):
            _, values = policy.act(prompts, None)
            expected, expected_values = policy(prompts)
            logprobs = policy.distributions(prompts)[:, : expected.shape[1]].to(expected.dtype)
            torch.testing.assert_close(logprobs, expected, **TOLERANCE)
            torch.testing.assert_close(values, expected_values.float(), **TOLERANCE)


def test_a_turn_costs_its_new_tokens(llm, monkeypatch):
    """By counting, also of one that stands still while the others go on: its prompt stays known. A pass takes
    new tokens alone into account: whole prompts would take two."""
    policy, (opening, *later) = policy_for(llm, tokens_per_forward=160), conversations(3)
    extend, passes = policy._extend, []
    monkeypatch.setattr(policy, "_extend", lambda prompts: passes.append(len(prompts)) or extend(prompts))
    still = make_prompt("nobody", "a", "b")
    with llm.frozen_weights():
        policy.act([*opening, still], None)
        for earlier, prompts in zip([opening, *later], later, strict=False):
            fresh = [prompt for prompt in dict.fromkeys(prompts) if prompt is not MIXED[0]]
            llm.tokens_computed = 0
            passes.clear()
            policy.act([*prompts, still], None)
            assert passes == [len(fresh)]
            new_tokens = [
                min(len(prompt.token_ids) - len(p.token_ids) for p in earlier if extends(prompt, p))
                for prompt in fresh
            ]
            assert llm.tokens_computed == sum(new_tokens) + sum(map(branch_tokens, fresh))
        after = follow(still, 0, "somebody", "a", "b")
        llm.tokens_computed = 0
        policy.act([after], None)
        assert llm.tokens_computed == len(after.token_ids) - len(still.token_ids)


def extends(later: Prompt, earlier: Prompt) -> bool:
    return later.token_ids[: len(earlier.token_ids)] == earlier.token_ids


def branch_tokens(prompt: Prompt) -> int:
    """Distinct prefixes of its candidates that have to be run: all but whole ones."""
    return len({ids[:length] for ids in prompt.candidate_ids for length in range(1, len(ids))})


def test_keys_and_values_are_kept_only_where_prompts_extend(llm):
    """Nor are they kept while the weights may change."""
    policy = policy_for(llm)
    with llm.frozen_weights():
        policy.act(MIXED, None, keep_kv_cache=False)
        assert llm.kv_caches == []
    policy.act(MIXED, None)
    assert llm.kv_caches == []
