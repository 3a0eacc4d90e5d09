"""A choice between texts: the trie's distribution is that of writing token by token under its constraint."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny
from lgym.batch import Context
from lgym.policies import CandidatePolicy

TEXTS = ("go", "go on", "go off", "stop", "a")


def context(texts=TEXTS) -> Context:
    tokenizer = tiny.tokenizer()
    ids = tuple(tuple(tokenizer.encode(text)) for text in texts)
    return Context(tuple(tokenizer.encode("What now? ")), ids, texts, "what")


def policy(normalisation="trie", texts=TEXTS):
    made = CandidatePolicy(normalisation)
    made.bind(tiny.llm(dtype=torch.float64))
    with torch.no_grad():
        return made, made([context(texts)])[0][0]


def walked(llm, ids, texts):
    """Log-probability of a candidate, one step after another, by the transformers model alone."""
    candidates = [*context(texts).candidate_ids]
    end = llm.tokenizer.eos_token_id
    total = 0.0
    for step in range(len(ids) + 1):
        said = ids[:step]
        allowed = {c[step] for c in candidates if len(c) > step and c[:step] == said}
        allowed |= {end} if said in candidates else set()
        prompt = context().prompt_ids + said
        logits = llm.causal_lm(input_ids=torch.tensor([prompt])).logits[0, -1]
        token = ids[step] if step < len(ids) else end
        if token in allowed:
            total += float((logits[token] - logits[sorted(allowed)].logsumexp(-1)).detach())
    return total


@pytest.mark.parametrize("texts", [TEXTS, ("left", "right"), ("l", "r"), ("one",)], ids=len)
def test_the_trie_is_constrained_decoding(texts):
    made, logprobs = policy(texts=texts)
    expected = [walked(made.llm, ids, texts) for ids in context(texts).candidate_ids]
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-6)
    assert float(logprobs.exp().sum()) == pytest.approx(1.0)


def test_the_trie_is_another_distribution():
    """Where candidates begin alike, the sum of log-likelihoods weighs tokens that had no alternative."""
    assert not torch.allclose(policy("trie")[1], policy("sum")[1], atol=1e-2)


def test_contexts_of_unlike_candidates_share_a_batch():
    made, alone = policy()
    with torch.no_grad():
        together, _ = made([context(("left", "right")), context()])
    torch.testing.assert_close(together[1], alone, rtol=1e-6, atol=1e-8)
    assert together[0, 2:].isneginf().all()
