"""Any conversation: what the model is fed is what it was fed and said before, within the window and the model's context."""

from __future__ import annotations

from functools import cache

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lgym.data.collector import Collector
from lgym.data.slot import Slot

from helpers import echo, tiny
from helpers.fuzz import inputs
from helpers.replies import reply_batch
from helpers.templates import TEMPLATES
from lgym.data.prompts.conversation import Conversation
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.policies import GenerationPolicy, ThinkPolicy
from lgym.types import Said

END = tiny.tokenizer().eos_token_id
SPECIAL = tuple(tiny.tokenizer().all_special_ids)


@cache
def tokenizer(template):
    return tiny.tokenizer(TEMPLATES[template])


def decoded(ids):
    """As a policy tells what it said: without special tokens."""
    return tokenizer("plain").decode(list(ids), skip_special_tokens=True)


KEEPS = ("plain", "adds bos", "no system role", "alternates")
"""Templates under which a conversation goes on from its own tokens."""

HISTORIES = st.just("full") | st.integers(0, 4)
WORDS = st.text(st.sampled_from("abe \n\t.é🂡<|>"), max_size=12)
"""With the letter that `drops thinking` looks for, space that `trims` takes away, and characters of several tokens."""

BYTES = st.lists(st.integers(0, 255) | st.sampled_from(SPECIAL[:2]), max_size=8)
"""Tokens as a random model says them: halves of characters, special tokens in the middle."""


@st.composite
def said(draw, canonical):
    """What a policy said: the tokens of a text, or any tokens; ended by itself or cut."""
    ended = draw(st.booleans())
    ids = tokenizer("plain").encode(draw(WORDS)) if canonical else draw(BYTES)
    ids = ids if ended or ids else [65]  # a reply has a token at least
    text = decoded(ids)
    return Said(text, text, (*ids, *([END] if ended else [])), ended)


CONVERSATIONS = st.booleans().flatmap(
    lambda canonical: st.tuples(st.just(canonical), st.lists(st.tuples(WORDS, said(canonical)), min_size=1, max_size=8))
)


def shown_of(builder, turns, observation, ids, most):
    """How many turns a prompt shows that the template has rendered anew; `None` if it is none of these."""
    alike = [k for k in range(most + 1) if builder.encode(builder.render(turns[len(turns) - k :], observation)) == ids]
    return max(alike, default=None)


@inputs(50)
@given(st.sampled_from(list(TEMPLATES)), HISTORIES, st.integers(180, 700), CONVERSATIONS, st.lists(WORDS, max_size=3))
def test_a_prompt_goes_on_from_the_last_or_is_the_templates_own(template, history, length, conversation, candidates):
    """Token for token; and it shows the last turns: as many as are wanted, or a half of them where more would not fit."""
    canonical, turns = conversation
    builder = PromptBuilder(tokenizer(template), "Be brief.", length)
    candidates = tuple(sorted({word for word in candidates if word}))
    room = max((len(builder.encode(candidate)) for candidate in candidates), default=0)
    talk, played, shown = Conversation(builder, history), [], 0
    fed = ()  # what the model was fed and said last
    for observation, reply in turns:
        context = talk.context(observation, candidates)
        ids, most = context.prompt_ids, min(len(played), shown + 1) if played else 0
        assert len(ids) + room <= length
        assert context.candidates == candidates
        wanted = most if history == "full" else min(most, history)
        anew = shown_of(builder, played, observation, ids, wanted)
        if fed and ids[: len(fed)] == fed:
            assert history != 0
            shown = wanted
        else:
            assert anew is not None
            shown = anew
            fits = [k for k in range(wanted + 1) if builder.fits(rendered(builder, played, observation, k), candidates)]
            left = wanted
            while left > max(fits):
                left //= 2  # the older half leaves at once
            # Beside what it says, a reply may have tokens without a text: with these, a half more may have to leave.
            assert shown == left or (not canonical and shown == left // 2)
            if fed and template in KEEPS and wanted == most:
                assert shown < most  # a new transcript only where turns had to leave
        if canonical and template == "plain":  # then what the model is fed has but one form
            assert ids == rendered(builder, played, observation, shown)
        talk.reply(reply)
        fed = ids + reply.ids if history != 0 else ()
        played.append((observation, builder.reply_text(reply.text, reply.ids)))


def rendered(builder, turns, observation, count):
    return builder.encode(builder.render(turns[len(turns) - count :], observation))


@cache
def model(template):
    llm = tiny.llm()
    llm.tokenizer = tokenizer(template)
    return llm


def generation(limit, stop, choice_temperature):
    return GenerationPolicy(max_new_tokens=limit, stop=stop, row_length=8, responses_per_forward=3)


def thinking(limit, stop, choice_temperature):
    return ThinkPolicy(limit, " so: ", "token", choice_temperature, stop=stop, row_length=8, responses_per_forward=3)


@inputs(6)
@given(
    st.sampled_from(list(TEMPLATES)),
    HISTORIES,
    st.sampled_from([generation, thinking]),
    st.integers(1, 7),
    st.lists(st.sampled_from(["e", "a", "th", "\n", "xyz"]), max_size=2, unique=True),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.integers(1, 4),
    st.sampled_from([150, 1000]),
    st.integers(0, 2**31),
)
def test_what_is_recorded_is_what_was_fed_and_what_training_computes(
    template, history, make, limit, stop, temperature, num_envs, length, seed
):
    """Whatever the policy and its window: a stream goes on from its own tokens, and the likelihoods that were noted while
    many were written together are those of each alone."""
    llm, policy = model(template), make(limit, stop, temperature)
    policy.bind(llm)
    agent = type("Agent", (echo.EchoAgent,), {"fallback": "random"})()
    builder = PromptBuilder(llm.tokenizer, agent.system_prompt, length)
    slots = [
        Slot(gymnasium.make("Echo-v0", turns=3), agent, builder, chooses=policy.chooses, history=history)
        for _ in range(num_envs)
    ]
    with llm.frozen_weights():
        rollout = Collector(slots, seed).play(policy, np.random.default_rng(seed), episodes=num_envs)
    for reply in rollout.replies:
        assert len(reply.mask) == len(reply.logprobs) == len(reply.ids) >= 1
        assert all(logprob == 0 for logprob, drawn in zip(reply.logprobs, reply.mask, strict=True) if not drawn)
        assert 1 <= sum(reply.mask) <= limit + (reply.choice >= 0)
    if template in KEEPS and history == "full" and length == 1000:
        for row, choices in zip(rollout.context_ids.tolist(), rollout.choices.tolist(), strict=True):
            prompts = [rollout.contexts[number].prompt_ids for number in row]
            for before, choice, prompt in zip(prompts, choices, prompts[1:], strict=False):
                fed = before + rollout.replies[choice].ids
                assert prompt[: len(fed)] == fed
    rows, replies = zip(*played(rollout), strict=True)
    batch = reply_batch(
        rollout.contexts,
        rows,
        [reply.ids for reply in replies],
        masks=[reply.mask for reply in replies],
        choices=[reply.choice for reply in replies],
    )
    with torch.no_grad():
        llm.share_prefixes = False
        likely = policy.likelihoods(batch).logprobs
        llm.share_prefixes = True
    recorded = torch.zeros(batch.mask.shape)
    for row, reply in zip(recorded, replies, strict=True):
        row[: len(reply.ids)] = torch.tensor(reply.logprobs)
    assert recorded.tolist() == [pytest.approx(row, abs=1e-4) for row in likely.tolist()]


def played(rollout):
    """Which context each turn answered, and with which reply."""
    turns = zip(rollout.context_ids[rollout.mask].tolist(), rollout.choices[rollout.mask].tolist(), strict=True)
    return sorted(((row, rollout.replies[choice]) for row, choice in turns), key=lambda turn: turn[0])
