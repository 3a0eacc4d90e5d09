"""A choice between texts: constrained decoding is writing token by token where nothing but the candidates is
allowed."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny
from helpers.prompts import make_prompt
from lgym.models.lm_head import LMHead
from lgym.policies import CandidatePolicy

TEXTS = ("go", "go on", "go off", "stop", "a")


def policy_and_logprobs(texts=TEXTS, *, constrained=True):
    policy = CandidatePolicy(constrained_decoding=constrained)
    policy.bind(tiny.llm(dtype=torch.float64))
    with torch.no_grad():
        return policy, policy([make_prompt("What now?", *texts)])[0][0]


def decoded_logprob(llm, ids, prompt):
    """Log-probability of a candidate, one step after another, by the transformers model alone."""
    end = llm.tokenizer.eos_token_id
    total = 0.0
    for step in range(len(ids) + 1):
        written = ids[:step]
        allowed = {c[step] for c in prompt.candidate_ids if len(c) > step and c[:step] == written}
        allowed |= {end} if written in prompt.candidate_ids else set()
        logits = llm.causal_lm(input_ids=torch.tensor([prompt.token_ids + written])).logits[0, -1]
        token = ids[step] if step < len(ids) else end
        if token in allowed:
            total += float((logits[token] - logits[sorted(allowed)].logsumexp(-1)).detach())
    return total


@pytest.mark.parametrize("texts", [TEXTS, ("left", "right"), ("l", "r"), ("one",)], ids=len)
def test_constrained_decoding_is_writing_token_by_token(texts):
    policy, logprobs = policy_and_logprobs(texts)
    prompt = make_prompt("What now?", *texts)
    expected = [decoded_logprob(policy.llm, ids, prompt) for ids in prompt.candidate_ids]
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-6)
    assert float(logprobs.exp().sum()) == pytest.approx(1.0)


def test_constrained_decoding_is_another_distribution():
    """The sum of log-likelihoods weighs tokens that had no alternative, in candidates that begin alike."""
    assert not torch.allclose(policy_and_logprobs()[1], policy_and_logprobs(constrained=False)[1], atol=1e-2)


def test_constrained_decoding_runs_no_token_behind_the_last_choice():
    """Catches texts that are run to their ends: these differ in their first letters alone."""
    texts = ("left and left", "right and right")
    policy, logprobs = policy_and_logprobs(texts)
    prompt = make_prompt("What now?", *texts)
    assert policy.choice.sequences([prompt]) == [[(), ()]]
    whole, _ = policy_and_logprobs(texts, constrained=False)
    assert all(map(len, whole.choice.sequences([prompt])[0]))
    expected = [decoded_logprob(policy.llm, ids, prompt) for ids in prompt.candidate_ids]
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-6)


def test_a_token_that_several_candidates_allow_is_scored_once(monkeypatch):
    """Each candidate scored all tokens that are allowed at each of its steps: the square of their number."""
    scored, chosen_logits = [], LMHead.chosen_logits

    def counted(self, hidden, token_ids):
        scored.append(token_ids.numel())
        return chosen_logits(self, hidden, token_ids)

    monkeypatch.setattr(LMHead, "chosen_logits", counted)
    policy_and_logprobs()  # g, s or a, then the end or a space behind `go`, and n or f behind `go o`
    assert scored[-1] == 3 + 2 + 2  # before it the model was tried out


def test_prompts_with_different_candidates_share_a_batch():
    policy, alone = policy_and_logprobs()
    prompts = [make_prompt("What now?", "left", "right"), make_prompt("What now?", *TEXTS)]
    with torch.no_grad():
        together, _ = policy(prompts)
    torch.testing.assert_close(together[1], alone, rtol=1e-6, atol=1e-8)
    assert together[0, 2:].isneginf().all()


def test_constrained_decoding_takes_no_length_normalization():
    """Its probabilities sum to 1 as they are."""
    with pytest.raises(ValueError, match="length_normalization is 'token' and constrained_decoding is on"):
        CandidatePolicy("token", constrained_decoding=True)
