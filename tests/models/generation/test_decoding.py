"""Generation: the same tokens and log-probabilities as one full forward pass, whoever else is in the
batch."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny
from lgym.models.generation.decoding import generate
from lgym.models.generation.sampling import SamplingParams
from lgym.models.prefix_sharing.kv_cache import DecodeStep, KVCache
from models.prefix_sharing.test_tree_attention import FAMILIES, model_of, wrapped

PROMPTS = [
    (1, 2, 3, 4, 5, 6, 7, 20, 21),
    (1, 2, 3, 4, 5, 6, 7, 20, 22, 23),
    (1, 2, 3, 4, 5, 6, 30),
    (1, 2, 3, 4, 5, 6, 7, 20, 21),
]
UNLIKE = [(9, 8, 7), (1, 2, 3, 4, 5, 6, 30), (50,)]


def replies_of(llm, prompts, seed=0, stop_ids=(), **settings):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    limit = settings.pop("max_new_tokens", 12)
    others = {
        name: settings.pop(name)
        for name in ("static_shapes", "kv_caches", "max_num_seqs")
        if name in settings
    }
    written = generate(
        llm,
        prompts,
        max_new_tokens=limit,
        stop_ids=stop_ids,
        sampling_params=SamplingParams(**settings),
        generator=generator,
        **others,
    )
    return each(written)


def each(written):
    """The reply to each prompt."""
    return [written.responses[row] for row in written.response_index]


def recomputed(llm, prompt, reply, **settings):
    """Log-probabilities of a reply's tokens by the transformers model alone, in one pass over prompt and
    reply."""
    logits = llm.causal_lm(input_ids=torch.tensor([prompt + reply.token_ids])).logits[0, len(prompt) - 1 : -1]
    return (
        SamplingParams(**settings)
        .probabilities(logits)
        .log()
        .gather(-1, torch.tensor(reply.token_ids)[:, None])
        .squeeze(-1)
    )


@pytest.mark.parametrize("prompts", [PROMPTS, UNLIKE, PROMPTS[:1]], ids=["prefix", "no prefix", "one"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}], ids=str)
def test_logprobs_are_those_of_one_full_forward(llm, prompts, settings):
    """A stale key, a wrong position or a neighbour's token shows as another log-probability."""
    for prompt, reply in zip(prompts, replies_of(llm, prompts, **settings), strict=True):
        assert len(reply.token_ids) == len(reply.logprobs) == 12
        expected = recomputed(llm, prompt, reply, **settings)
        assert expected.isfinite().all()
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected.float(), rtol=1e-4, atol=1e-5)


def greedy_by_transformers(llm, prompt):
    """The 12 tokens that `generate` of transformers appends to one prompt."""
    ids = torch.tensor([prompt])
    generated = llm.causal_lm.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
    )
    return generated[0, len(prompt) :].tolist()


@pytest.mark.parametrize("layout", ["tree", "prefix_cache", "padded"])
def test_greedy_is_transformers_own(llm, layout):
    """Against `generate`, one prompt at a time."""
    llm.layout = layout
    for prompt, reply in zip(PROMPTS, replies_of(llm, PROMPTS, seed=None), strict=True):
        assert list(reply.token_ids) == greedy_by_transformers(llm, prompt)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_generates_what_transformers_generates(family):
    """Soft caps, partial rotation, learned positions, windows: token by token as in `generate`."""
    model, _ = model_of(family)
    llm = wrapped(model)
    for prompt, reply in zip(PROMPTS, replies_of(llm, PROMPTS, seed=None), strict=True):
        assert list(reply.token_ids) == greedy_by_transformers(llm, prompt)


def test_the_states_at_the_prompts_ends_come_along(llm):
    """What values are read from."""
    ends = generate(
        llm, PROMPTS, max_new_tokens=3, stop_ids=(), sampling_params=SamplingParams(), generator=None
    ).prompt_states
    for prompt, end in zip(PROMPTS, ends, strict=True):
        own = llm.causal_lm.base_model(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1]
        torch.testing.assert_close(end, own, rtol=1e-5, atol=1e-6)


def test_a_reply_that_has_ended_leaves(llm):
    """Its end is kept, the others go on as if it were still there, and it costs no more tokens. Two prompts
    are the same, and what is said to them is computed once."""
    free = replies_of(llm, PROMPTS, seed=None)
    stop = free[2].token_ids[3]
    llm.tokens_computed = 0
    stopped = replies_of(llm, PROMPTS, seed=None, stop_ids=[stop])
    for before, after in zip(free, stopped, strict=True):
        cut = before.token_ids.index(stop) + 1 if stop in before.token_ids else 12
        assert after.token_ids == before.token_ids[:cut]
        assert after.finished == (stop in before.token_ids)
    assert stopped[2].finished
    prompts = 6 + 3 + 2 + 1  # common prefix; 7 20 21, then 22 23, then 30
    assert llm.tokens_computed == prompts + sum(len(reply.token_ids) - 1 for reply in stopped[:3])


@pytest.mark.parametrize("prompts", [PROMPTS, UNLIKE, PROMPTS[:1]], ids=["prefix", "no prefix", "one"])
def test_static_shapes_generate_the_same(llm, prompts):
    """The loop for GPUs, run here without its graph: ended replies stay in the batch and change nobody's."""
    free = replies_of(llm, prompts, seed=None, max_new_tokens=40)
    stop_ids = [free[0].token_ids[3]]
    leaving = replies_of(llm, prompts, seed=None, max_new_tokens=40, stop_ids=stop_ids)
    staying = replies_of(llm, prompts, seed=None, max_new_tokens=40, stop_ids=stop_ids, static_shapes=True)
    assert any(reply.finished for reply in staying)
    for one, other in zip(leaving, staying, strict=True):
        assert (one.token_ids, one.finished) == (other.token_ids, other.finished)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    for prompt, reply in zip(prompts, replies_of(llm, prompts, static_shapes=True), strict=True):
        expected = recomputed(llm, prompt, reply).float()
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected, rtol=1e-4, atol=1e-5)


def test_static_shapes_stop_when_all_have_ended(llm):
    first = {reply.token_ids[0] for reply in replies_of(llm, PROMPTS, seed=None, max_new_tokens=1)}
    llm.tokens_computed = 0
    replies = replies_of(llm, PROMPTS, seed=None, max_new_tokens=200, stop_ids=first, static_shapes=True)
    assert [len(reply.token_ids) for reply in replies] == [1] * 4
    assert llm.tokens_computed == 12 + 4 * 15  # the prompts, and no more than the steps before it looks


def written(llm, prompts, known=(), **settings):
    return generate(
        llm,
        prompts,
        max_new_tokens=6,
        stop_ids=(),
        sampling_params=SamplingParams(),
        generator=None,
        kv_caches=known,
        **settings,
    )


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("prompts", [PROMPTS, UNLIKE, PROMPTS[:1]], ids=["prefix", "no prefix", "one"])
def test_a_conversation_goes_on_from_what_is_known(llm, prompts, static):
    """Three turns, rests of unequal length: the same as without the kv_cache, for no more than the new
    tokens."""
    known, turn = (), list(prompts)
    for number in range(3):
        llm.tokens_computed = 0
        after = written(llm, turn, known, static_shapes=static)
        computed = llm.tokens_computed
        anew = written(llm, turn)
        for one, other in zip(each(after), each(anew), strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        torch.testing.assert_close(after.prompt_states, anew.prompt_states, rtol=1e-5, atol=1e-5)
        if number:
            assert computed == sum(
                1 + 1 + i + 5 for i in range(len(turn))
            )  # last token, rest, and 5 of the new reply
        known = [after.kv_cache]
        turn = [
            p + r.token_ids + tuple(range(60, 61 + i))
            for i, (p, r) in enumerate(zip(turn, each(after), strict=True))
        ]


def test_known_and_new_conversations_meet_in_one_batch(llm):
    """In any order, one going on twice, with another prefix than the new ones have."""
    first = written(llm, PROMPTS)
    on = [p + r.token_ids + (77,) for p, r in zip(PROMPTS, each(first), strict=True)]
    turn = [(9, 8, 7), on[2], on[0], (1, 2, 3, 50), on[2] + (78,), (9, 8, 7)]
    mixed = written(llm, turn, [first.kv_cache])
    for one, prompt in zip(each(mixed), turn, strict=True):
        assert one.token_ids == written(llm, [prompt]).responses[0].token_ids
        assert one.logprobs == pytest.approx(recomputed(llm, prompt, one).tolist(), abs=1e-5)
    again = [p + r.token_ids + (79,) for p, r in zip(turn, each(mixed), strict=True)]
    for one, prompt in zip(each(written(llm, again, [mixed.kv_cache])), again, strict=True):
        assert one.logprobs == pytest.approx(recomputed(llm, prompt, one).tolist(), abs=1e-5)


def test_a_prefix_is_kept_while_the_weights_are_fixed(llm):
    free = replies_of(llm, PROMPTS, seed=None)
    with llm.frozen_weights():
        replies_of(llm, PROMPTS, seed=None)
        llm.tokens_computed = 0
        assert replies_of(llm, PROMPTS[:1], seed=None)[0].token_ids == free[0].token_ids
        assert llm.tokens_computed == 3 + 11


def test_tokens_are_drawn_as_often_as_they_are_likely(llm):
    """4,000 draws: one of 260 deviations passes 5 standard errors once in 7,000 runs, and the seed is
    fixed."""
    prompt = (5, 6, 7)
    draws = replies_of(llm, [prompt] * 4000, max_new_tokens=1)
    counts = torch.bincount(torch.tensor([reply.token_ids[0] for reply in draws]), minlength=260) / 4000
    expected = llm.causal_lm(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)
    error = (expected * (1 - expected) / 4000).sqrt() + 1e-3
    assert float(((counts - expected).abs() / error).max().detach()) < 5
    assert float(expected.max()) < 0.9
    assert replies_of(llm, [prompt] * 40) != replies_of(llm, [prompt] * 40, seed=1)
    assert replies_of(llm, [prompt] * 40) == replies_of(llm, [prompt] * 40)


@pytest.mark.parametrize("max_num_seqs", [256, 3, 2, 1])
@pytest.mark.parametrize("layout", ["tree", "padded"])
def test_equal_prefixes_are_computed_once(llm, layout, max_num_seqs):
    """200 replies of 3 tokens to 4 prompts, some rows at a time or all at once: every distinct prefix is one
    row, once, and log-probabilities and KV caches are those of each reply."""
    llm.layout = layout
    prompts = PROMPTS[:3] * 66 + UNLIKE[-1:] * 2
    llm.tokens_computed = 0
    lot = generate(
        llm,
        prompts,
        max_new_tokens=3,
        stop_ids=(),
        sampling_params=SamplingParams(top_k=4),
        generator=torch.Generator().manual_seed(0),
        max_num_seqs=max_num_seqs,
    )
    said = {(prompt, reply.token_ids) for prompt, reply in zip(prompts, each(lot), strict=True)}
    assert len(lot.responses) == len(said) > 60
    if layout == "tree":
        prefixes = {(prompt, ids[:length]) for prompt, ids in said for length in (1, 2)}
        assert llm.tokens_computed == 7 + 4 + 1 + 1 + len(prefixes)  # 1 to 7; 20 to 23; 30; 50
        assert lot.kv_cache is not None
        for row, prompt in zip(lot.response_index, prompts, strict=True):
            assert (
                lot.kv_cache.prefix_ids + lot.kv_cache.suffix_ids[row]
                == prompt + lot.responses[row].token_ids[:-1]
            )
            assert int(lot.kv_cache.lengths[row]) == len(prompt) + 2 - len(lot.kv_cache.prefix_ids)
    for prompt, reply in list(zip(prompts, each(lot), strict=True))[-12:]:
        expected = recomputed(llm, prompt, reply, top_k=4).float()
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected, rtol=1e-4, atol=1e-5)


def test_torchs_default_precision_changes_nothing(llm):
    """Under `bf16-true` Lightning makes bfloat16 the default: noise and records would lose all but three
    digits."""
    before = replies_of(llm, PROMPTS)
    torch.set_default_dtype(torch.bfloat16)
    after = replies_of(llm, PROMPTS)
    assert after == before


def test_bf16_stays_close_to_its_own_forward_pass():
    """What `policy/logprob_diff_max` will show on the real model: rounding, no more."""
    llm = tiny.llm(dtype=torch.bfloat16)
    for prompt, reply in zip(PROMPTS, replies_of(llm, PROMPTS), strict=True):
        torch.testing.assert_close(
            torch.tensor(reply.logprobs), recomputed(llm, prompt, reply), rtol=0, atol=0.3
        )


@pytest.mark.parametrize("prefix_ids", [(), (1,)])
def test_scores_beyond_fp16_are_scaled_before_they_overflow(prefix_ids):
    """With 50 in each of 64 dimensions q · k is 160,000, where fp16 ends at 65,504; scaled it is 20,000."""
    layer, large = torch.nn.Identity(), torch.full((1, 1, 64), 50.0, dtype=torch.float16)
    prefix_kv = {layer: (large[:, : len(prefix_ids)], large[:, : len(prefix_ids)])}
    kv_cache = KVCache(prefix_ids, [()], prefix_kv, {layer: (large.new_zeros(1, 1, 2, 64),) * 2})
    rows = torch.tensor([0])
    step = DecodeStep.from_cache(kv_cache, rows, lengths=rows, counts=[1], max_length=2)
    assert step.attend(layer, large, large, large, 64**-0.5, None).eq(50).all()
