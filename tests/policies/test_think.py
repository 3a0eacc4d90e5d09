"""Think, then choose: the text and the choice are drawn and trained, the cue is nobody's."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny
from helpers.replies import reply_batch
from lgym.batch import Context
from lgym.policies import ThinkPolicy

CUE = " so: "


def context(text: str, *candidates: str) -> Context:
    tokenizer = tiny.tokenizer()
    candidate_ids = tuple(tuple(tokenizer.encode(candidate)) for candidate in candidates)
    return Context(tuple(tokenizer.encode(f"Rules. {text}")), candidate_ids, candidates, text)


SHORT = [context("red", "a", "b"), context("green", "b", "c", "d")]
LONG = [context("red", "left", "right"), context("green", "go", "go on", "stop")]


def policy(**settings) -> ThinkPolicy:
    made = ThinkPolicy(**{"max_reasoning_tokens": 5, "cue": CUE, **settings})
    made.bind(tiny.llm(dtype=torch.float64))
    return made


def replies_of(acting, contexts, count=8, seed=0):
    rows = [i % 2 for i in range(count)]
    return rows, acting.reply([contexts[row] for row in rows], seed)[0]


def batch_of(contexts, rows, replies):
    return reply_batch(
        contexts, rows, [r.ids for r in replies], masks=[r.mask for r in replies], choices=[r.choice for r in replies]
    )


def test_candidates_are_those_of_the_own_context():
    """Two turns read alike and may answer otherwise. With top_k 1 they think alike too; each has its own choice."""
    acting = policy(top_k=1)
    two, three = context("red", "a", "b"), context("red", "c", "d", "e")
    for seed in range(10):
        for own, reply in zip([two, three, two], acting.reply([two, three, two], seed)[0], strict=True):
            assert reply.ids[-1:] == own.candidate_ids[reply.choice]
            assert reply.text.endswith(own.candidates[reply.choice])


SETTINGS = [
    {},
    {"choice_temperature": 2.0},
    {"normalisation": "trie"},
    {"normalisation": "token"},
    {"share_prefixes": False},
]


@pytest.mark.parametrize("contexts", [SHORT, LONG], ids=["one token", "several"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_training_computes_what_was_recorded(contexts, settings):
    acting = policy(**settings)
    rows, replies = replies_of(acting, contexts)
    with torch.no_grad():
        likely = acting.likelihoods(batch_of(contexts, rows, replies))
    for own, reply in zip(likely.logprobs, replies, strict=True):
        count = min(len(reply.ids), len(own))
        assert own[:count].tolist() == pytest.approx(reply.logprobs[:count], abs=1e-5)


@pytest.mark.parametrize("layout", ["prefix_cache", "padded"])
def test_models_that_keep_no_past_choose_alike(layout):
    acting = policy()
    expected = replies_of(acting, LONG, seed=None)[1]
    acting.llm.layout = layout
    for one, other in zip(replies_of(acting, LONG, seed=None)[1], expected, strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_a_reply_is_text_cue_and_candidate():
    acting = policy()
    tokenizer, ends = acting.llm.tokenizer, acting.llm.tokenizer.eos_token_id
    for row, reply in zip(*replies_of(acting, LONG), strict=True):
        candidate = LONG[row].candidates[reply.choice]
        assert reply.text.endswith(CUE + candidate)
        thought = len(reply.ids) - len(tokenizer.encode(CUE + candidate))
        assert 1 <= thought <= 5
        assert thought == 5 or reply.ids[thought - 1] == ends
        assert reply.mask == (*[True] * thought, *[False] * len(CUE), True, *[False] * (len(candidate) - 1))
        assert list(reply.ids[thought:]) == tokenizer.encode(CUE + candidate)


def test_the_choice_is_the_models_own_behind_the_text():
    """By the transformers model alone: the sum over each candidate's tokens, renormalised."""
    acting = policy()
    rows, replies = replies_of(acting, LONG, count=64)
    assert any(reply.ended for reply in replies)
    for row, reply in zip(rows, replies, strict=True):
        at = max(i for i, drawn in enumerate(reply.mask) if drawn)
        before = LONG[row].prompt_ids + reply.fed_ids[: -len(LONG[row].candidate_ids[reply.choice])]
        assert acting.llm.tokenizer.eos_token_id not in before
        scores = []
        for ids in LONG[row].candidate_ids:
            logits = acting.llm.causal_lm(input_ids=torch.tensor([before + ids])).logits[0, len(before) - 1 : -1]
            scores.append(logits.log_softmax(-1)[range(len(ids)), list(ids)].sum())
        expected = torch.stack(scores).log_softmax(-1)[reply.choice]
        assert reply.logprobs[at] == pytest.approx(float(expected.detach()), abs=1e-5)


def test_text_and_choice_learn_and_the_cue_does_not():
    """The gradient of all is that of the text's tokens and the choice, each by a plain forward pass."""
    acting = policy()
    rows, replies = replies_of(acting, SHORT, count=4)
    parameters = [p for name, p in acting.named_parameters() if "lora" in name]
    batch = batch_of(SHORT, rows, replies)
    ours = torch.autograd.grad(acting.likelihoods(batch).logprobs.sum(), parameters)
    total = torch.zeros((), dtype=torch.float64)
    for row, reply in zip(rows, replies, strict=True):
        prompt, at = SHORT[row].prompt_ids, len(reply.ids) - 1
        logits = acting.llm.causal_lm(input_ids=torch.tensor([prompt + reply.ids])).logits[0, len(prompt) - 1 : -1]
        thought = at - len(CUE)
        total = total + logits.log_softmax(-1)[range(thought), list(reply.ids[:thought])].sum()
        options = [ids[0] for ids in SHORT[row].candidate_ids]
        total = total + logits[at, options].log_softmax(-1)[reply.choice]
    for one, plain in zip(ours, torch.autograd.grad(total, parameters), strict=True):
        torch.testing.assert_close(one, plain, rtol=1e-3, atol=1e-4)


def test_a_token_that_ends_the_turn_is_learned_and_not_fed():
    """The cue stood behind the end of a turn, where no model has seen anybody answer, and the text was not what was fed."""
    acting = policy()
    own, end, cue = LONG[0], acting.llm.tokenizer.eos_token_id, acting.cue_ids
    thought = tuple(acting.llm.tokenizer.encode("hm"))
    reply = acting.demonstrated(own, "", (*thought, end, *cue, *own.candidate_ids[1]), 1)
    assert reply.ids == (*thought, end, *cue, *own.candidate_ids[1])
    assert reply.fed_ids == (*thought, *cue, *own.candidate_ids[1])
    likely = acting.likelihoods(batch_of(LONG, [0], [reply]))

    def logprobs(ids):
        return acting.llm.causal_lm(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)

    behind = own.prompt_ids + thought
    assert float(likely.logprobs[0, 2]) == pytest.approx(float(logprobs(behind)[-1, end]), abs=1e-5)
    before = behind + cue
    scores = [logprobs(before + ids)[len(before) - 1 : -1][range(len(ids)), list(ids)].sum() for ids in own.candidate_ids]
    at = len(thought) + 1 + len(cue)
    assert float(likely.logprobs[0, at]) == pytest.approx(float(torch.stack(scores).log_softmax(-1)[1]), abs=1e-5)


def test_a_stop_text_ends_the_thinking():
    acting = policy(max_reasoning_tokens=40)
    letter = replies_of(acting, SHORT, seed=None)[1][0].text[3]
    stopping = ThinkPolicy(max_reasoning_tokens=40, cue=CUE, stop=[letter])
    stopping.bind(acting.llm)
    for reply in replies_of(stopping, SHORT, seed=None)[1]:
        assert letter not in reply.text.removesuffix(CUE + reply.text[-1])


def test_a_seed_repeats():
    acting = policy()
    assert replies_of(acting, LONG) == replies_of(acting, LONG)
    assert replies_of(acting, LONG)[1] != replies_of(acting, LONG, seed=1)[1]
