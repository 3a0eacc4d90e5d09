"""Any conversation: a prompt is the one before and its response, within the window and the model's
context."""

from __future__ import annotations

from functools import cache

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import echo, tiny
from helpers.collectors import make_collector
from helpers.fuzz import inputs
from helpers.prompts import response_batch
from helpers.templates import TEMPLATES
from lgym.data.prompts.conversation import Conversation
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.policies import GenerationPolicy, ThinkPolicy
from lgym.rollout import Response

END = tiny.tokenizer().eos_token_id
SPECIAL = tuple(tiny.tokenizer().all_special_ids)


@cache
def tokenizer(template):
    return tiny.tokenizer(TEMPLATES[template])


def decoded(ids):
    """The text of a response: without special tokens."""
    return tokenizer("plain").decode(list(ids), skip_special_tokens=True)


KEEPS = ("plain", "adds bos", "no system role", "alternates")
"""Templates under which a conversation goes on from its own tokens."""

HISTORIES = st.just("full") | st.integers(0, 4)
WORDS = st.text(st.sampled_from("abe \n\t.é🂡<|>"), max_size=12)
"""With the letter that `drops thinking` looks for, space that `trims` takes away, and characters of several
tokens."""

BYTES = st.lists(st.integers(0, 255) | st.sampled_from(SPECIAL[:2]), max_size=8)
"""Tokens as a random model samples them: halves of characters, special tokens in the middle."""


@st.composite
def responses(draw, canonical):
    """The tokens of a text, or any tokens; ended by itself or cut."""
    finished = draw(st.booleans())
    ids = tokenizer("plain").encode(draw(WORDS)) if canonical else draw(BYTES)
    ids = ids if finished or ids else [65]  # a response has a token at least
    return Response((*ids, *([END] if finished else [])), (), finished, decoded(ids))


CONVERSATIONS = st.booleans().flatmap(
    lambda canonical: st.tuples(
        st.just(canonical), st.lists(st.tuples(WORDS, responses(canonical)), min_size=1, max_size=8)
    )
)


def turns_shown(builder, turns, observation, ids, most):
    """The number of turns that a prompt shows that the template has rendered anew; `None` if it is none of
    these."""
    return max((k for k in range(most + 1) if rendered(builder, turns, observation, k) == ids), default=None)


@inputs(50)
@given(
    st.sampled_from(list(TEMPLATES)),
    HISTORIES,
    st.integers(180, 700),
    CONVERSATIONS,
    st.lists(WORDS, max_size=3),
)
def test_a_prompt_goes_on_from_the_last_or_is_the_templates_own(
    template, history, length, conversation, candidates
):
    """Token for token; and it shows the last turns: as many as are wanted, or a half of them where more would
    not fit."""
    canonical, turns = conversation
    builder = PromptBuilder(tokenizer(template), "Be brief.", length)
    candidates = tuple(sorted({word for word in candidates if word}))
    room = max((len(builder.encode(candidate)) for candidate in candidates), default=0)
    talk, played, shown = Conversation(builder, history), [], 0
    transcript = ()  # the last prompt and its response
    for observation, response in turns:
        prompt = talk.prompt(observation, candidates)
        ids, most = prompt.token_ids, min(len(played), shown + 1) if played else 0
        assert len(ids) + room <= length
        assert prompt.candidates == candidates
        wanted = most if history == "full" else min(most, history)
        anew = turns_shown(builder, played, observation, ids, wanted)
        if transcript and ids[: len(transcript)] == transcript:
            assert history != 0
            shown = wanted
        else:
            assert anew is not None
            shown = anew
            fits = [
                k
                for k in range(wanted + 1)
                if builder.fits(rendered(builder, played, observation, k), candidates)
            ]
            left = wanted
            while left > max(fits):
                left //= 2  # the older half leaves at once
            # A response may have tokens without a text: with these, a half more may have to leave.
            assert shown == left or (not canonical and shown == left // 2)
            if transcript and template in KEEPS and wanted == most:
                assert shown < most  # a new transcript only where turns had to leave
        if canonical and template == "plain":  # then a prompt has but one form
            assert ids == rendered(builder, played, observation, shown)
        talk.respond(response)
        transcript = ids + response.token_ids if history != 0 else ()
        played.append((observation, builder.response_text(response.text, response.token_ids)))


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
    return ThinkPolicy(
        limit,
        " so: ",
        "token",
        choice_temperature=choice_temperature,
        stop=stop,
        row_length=8,
        responses_per_forward=3,
    )


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
def test_the_record_is_the_transcript_and_training_computes_it(
    template, history, make, limit, stop, temperature, num_envs, length, seed
):
    """Whatever the policy and its window: a stream goes on from its own tokens, and the log-probabilities
    that were recorded while many were generated together are those of each alone."""
    llm, policy = model(template), make(limit, stop, temperature)
    policy.bind(llm)
    agent = type("Agent", (echo.EchoAgent,), {"fallback": "random"})()
    builder = PromptBuilder(llm.tokenizer, agent.system_prompt, length)
    envs = [gymnasium.make("Echo-v0", turns=3) for _ in range(num_envs)]
    settings = {"scores_candidates": policy.scores_candidates, "history": history}
    player = make_collector(envs, agent, builder, first_seed=seed, prompts=settings)
    with llm.frozen_weights():
        rollout = player.play(policy, np.random.default_rng(seed), episodes=num_envs)
    for response in rollout.responses:
        assert len(response.action_mask) == len(response.logprobs) == len(response.token_ids) >= 1
        columns = zip(response.logprobs, response.action_mask, strict=True)
        assert all(logprob == 0 for logprob, chosen in columns if not chosen)
        assert 1 <= sum(response.action_mask) <= limit + (response.choice >= 0)
    if template in KEEPS and history == "full" and length == 1000:
        check_streams(rollout)
    prompt_index, turns = zip(*sorted_turns(rollout), strict=True)
    batch = response_batch(rollout.prompts, prompt_index, turns)
    with torch.no_grad():
        llm.share_prefixes = False
        logprobs = policy.evaluate_actions(batch).logprobs
        llm.share_prefixes = True
    recorded = torch.zeros(batch.action_mask.shape)
    for row, response in zip(recorded, turns, strict=True):
        row[: len(response.token_ids)] = torch.tensor(response.logprobs)
    width = logprobs.shape[1]
    assert not recorded[:, width:].any()
    assert recorded[:, :width].tolist() == [pytest.approx(row, abs=1e-4) for row in logprobs.tolist()]


def check_streams(rollout):
    """Each prompt extends the one before and its history."""
    for row, numbers in zip(rollout.prompt_index.tolist(), rollout.response_index.tolist(), strict=True):
        prompts = [rollout.prompts[number].token_ids for number in row]
        for before, number, prompt in zip(prompts, numbers, prompts[1:], strict=False):
            transcript = before + rollout.responses[number].history_ids
            assert prompt[: len(transcript)] == transcript


def sorted_turns(rollout):
    """The number of each turn's prompt and the response to it."""
    turns = zip(rollout.prompt_index[rollout.mask].tolist(), rollout.turn_responses(), strict=True)
    return sorted(turns, key=lambda turn: turn[0])
