"""The entropy of think, then choose: of each token of the text over the vocabulary, of the choice over its candidates."""

from __future__ import annotations

import pytest
import torch

from helpers.replies import reply_batch
from lgym.functional import categorical_entropy
from policies.test_think import LONG, SHORT, policy, replies_of


def batch_of(contexts, rows, replies):
    return reply_batch(
        contexts, rows, [r.ids for r in replies], masks=[r.mask for r in replies], choices=[r.choice for r in replies]
    )


@pytest.mark.parametrize("contexts", [SHORT, LONG], ids=["one token", "several"])
def test_text_choice_and_cue_have_their_own_entropy(contexts):
    """By the transformers model alone. Catches the choice's entropy left out, one over the vocabulary in its place, and an
    entropy on the cue, which nobody chose."""
    acting = policy()
    rows, replies = replies_of(acting, contexts)
    with torch.no_grad():
        found = acting.likelihoods(batch_of(contexts, rows, replies)).entropy
    choices = []
    for own, row, reply in zip(found, rows, replies, strict=True):
        prompt, at = contexts[row].prompt_ids, max(i for i, drawn in enumerate(reply.mask) if drawn)
        before, scores = prompt + reply.fed_ids[: -len(contexts[row].candidate_ids[reply.choice])], []
        for ids in contexts[row].candidate_ids:
            logits = acting.llm.causal_lm(input_ids=torch.tensor([before + ids])).logits[0].detach()
            scores.append(logits[len(before) - 1 : -1].log_softmax(-1)[range(len(ids)), list(ids)].sum())
        said = sum(reply.mask) - 1
        expected = torch.zeros(len(own), dtype=own.dtype)
        expected[:said] = categorical_entropy(logits.log_softmax(-1))[len(prompt) - 1 :][:said]
        choice = torch.stack(scores).softmax(0)
        expected[at] = -(choice * choice.log()).sum()
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)
        choices.append(float(expected[at]))
    assert max(choices) > 0.1


def test_the_bonus_pulls_at_the_choice():
    """Catches an entropy of the choice without gradient: it is the choice's own, by a plain forward pass."""
    acting = policy()
    rows, replies = replies_of(acting, SHORT, count=2)
    parameters = [p for name, p in acting.named_parameters() if "lora" in name]
    batch = batch_of(SHORT, rows, replies)
    ours, total = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    entropy = acting.likelihoods(batch, entropy_gradient=True).entropy
    for own, row, reply in zip(entropy, rows, replies, strict=True):
        at = len(reply.ids) - 1
        logits = acting.llm.causal_lm(input_ids=torch.tensor([SHORT[row].prompt_ids + reply.ids])).logits[0]
        options = [ids[0] for ids in SHORT[row].candidate_ids]
        ours, total = ours + own[at], total + categorical_entropy(logits[-2, options].log_softmax(-1))
    plain = torch.autograd.grad(total, parameters)
    assert sum(float(gradient.abs().sum()) for gradient in plain) > 0
    for one, other in zip(torch.autograd.grad(ours, parameters), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
