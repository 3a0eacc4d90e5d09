"""Any environment, agent and loss of workers: what is recorded is what was played, and every episode is accounted for."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lgym.data.collector import Collector
from lgym.data.slot import Slot

from helpers.fuzz import inputs
from helpers.scripted import TOKENIZER, Chooser, DyingEnv, Numbered, ScriptedEnv, Speaker, spoken, value_of
from lgym.agents.base import FALLBACKS
from lgym.data.prompts.memory_prompt import MemoryPrompt
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.memory import EpisodicMemory
from lgym.types import Said

pytestmark = pytest.mark.filterwarnings("ignore:.*is dropped and begun anew:UserWarning")

SETUPS = st.fixed_dictionaries(
    {
        "script": st.integers(0, 2**31),
        "longest": st.integers(1, 6),
        "num_envs": st.integers(1, 4),
        "group_size": st.integers(1, 3),
        "refill": st.integers(0, 2),
        "history": st.just("full") | st.integers(0, 2),
        "speaks": st.booleans(),
        "fallback": st.sampled_from(FALLBACKS),
        "patience": st.integers(1, 3),
    }
)
DEATHS = st.dictionaries(st.integers(100, 112), st.lists(st.integers(0, 5), min_size=1, max_size=2), max_size=6)


def collector(setup, deaths=None, refill=True):
    settings = {"fallback": setup["fallback"], "patience": setup["patience"], "default_action": 1, "penalty": -0.25}
    agent = type("Agent", (Numbered,), settings)()
    builder = PromptBuilder(TOKENIZER, agent.system_prompt, 2048)
    envs = [ScriptedEnv(setup["script"], setup["longest"]) for _ in range(setup["num_envs"])]
    envs = envs if deaths is None else [DyingEnv(env, deaths) for env in envs]
    options = {"chooses": not setup["speaks"], "history": setup["history"]}
    memory = EpisodicMemory()  # in which nothing is stored: turns are kept in mind, and nothing is shown of them
    slots = [Slot(env, agent, builder, **options, memory_prompt=MemoryPrompt(agent, episodic=memory)) for env in envs]
    refills = setup["refill"] if refill else 0
    return Collector(slots, 100, kept_transcripts=2, group_size=setup["group_size"], dynamic_sampling_groups=refills)


def play(player, setup, rng, amount, by_turns):
    policy = Speaker() if setup["speaks"] else Chooser()
    if by_turns:
        return player.play(policy, rng, turns=amount * setup["num_envs"])
    return player.play(policy, rng, episodes=amount * setup["group_size"])


def told(rollout):
    """All of a rollout but its time, in plain values."""
    told = {field.name: getattr(rollout, field.name) for field in fields(rollout) if field.name != "play_seconds"}
    told["contexts"] = [(context.observation_text, context.candidates, context.prompt_ids) for context in rollout.contexts]
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in told.items()}


def turns_of(rollout, name):
    return getattr(rollout, name)[rollout.mask].tolist()


def check_streams(rollout):
    """Within each stream, values follow on each other, and only an episode that has ended gives way to another."""
    assert not rollout.rewards[~rollout.mask].any()
    assert rollout.terminated[~rollout.mask].all()
    assert not (rollout.truncated & (rollout.terminated | ~rollout.mask)).any()
    assert not rollout.next_values[rollout.terminated].any()
    assert rollout.values[rollout.mask].tolist() == pytest.approx(
        [value_of(rollout.contexts[number]) for number in turns_of(rollout, "context_ids")]
    )
    for stream in range(len(rollout.mask)):
        places = rollout.mask[stream].nonzero().squeeze(1).tolist()
        for here, after in zip(places, places[1:], strict=False):
            ended = bool(rollout.terminated[stream, here] or rollout.truncated[stream, here])
            assert ended == (rollout.episode_ids[stream, here] != rollout.episode_ids[stream, after]).item()
            if not ended:
                assert after == here + 1
                assert rollout.next_values[stream, here] == rollout.values[stream, after]
        if places:
            assert rollout.terminated[stream, places[-1]] or rollout.truncated[stream, places[-1]]


@inputs(30)
@given(SETUPS, st.none() | DEATHS, st.booleans(), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 99))
def test_every_episode_is_accounted_for(setup, deaths, by_turns, amounts, seed):
    """By its return, its seed and the ledger; and every stream is one episode after the other."""
    player, rng = collector(setup, deaths), np.random.default_rng(seed)
    returns, ended, lengths, begun = {}, [], [], 0
    for amount in amounts:
        rollout = play(player, setup, rng, amount, by_turns)
        check_streams(rollout)
        numbers = turns_of(rollout, "episode_ids")
        assert turns_of(rollout, "reset_seeds") == [100 + number // setup["group_size"] for number in numbers]
        for number, reward in zip(numbers, turns_of(rollout, "rewards"), strict=True):
            returns.setdefault(number, []).append(reward)
        ended += rollout.episode_returns.tolist()
        lengths += rollout.episode_lengths.tolist()
        state, ledger = player.state_dict(), player.ledger
        standing = [slot["number"] for slot in state["slots"] if slot is not None]
        assert ledger.played == ledger.finished + ledger.dropped + len(standing)
        assert ledger.finished == len(ended)
        if by_turns:
            assert int(rollout.mask.sum()) >= amount * setup["num_envs"]
            assert deaths or rollout.mask.all()
        else:
            assert not standing
            more, rest = divmod(len(set(numbers)) - amount * setup["group_size"], setup["group_size"])
            assert (rest, 0 <= more <= setup["refill"]) == (0, True)
            assert sorted(set(numbers)) == list(range(begun, begun + len(set(numbers))))
            begun += len(set(numbers))
        if not (by_turns and deaths):  # where a lost episode's first turns may be in a rollout before
            whole = [rewards for number, rewards in returns.items() if number not in standing]
            assert sorted(ended) == pytest.approx(sorted(map(sum, whole)), abs=1e-5)
            assert sorted(lengths) == sorted(map(len, whole))
    assert ledger.dropped == 0 or deaths is not None
    player.close()


@inputs(20)
@given(SETUPS, DEATHS, st.integers(1, 4))
def test_lost_workers_change_nothing(setup, deaths, amount):
    """Greedily the same episodes are played, turn by turn, as where none is lost."""
    setup = setup | {"speaks": False}
    found = []
    for own in (None, deaths):
        player = collector(setup, own, refill=False)
        rollout = play(player, setup, None, amount, False)
        check_streams(rollout)
        turns: dict[int, list] = {}
        columns = (turns_of(rollout, name) for name in ("episode_ids", "context_ids", "choices", "rewards", "next_values"))
        for number, context, choice, reward, value in zip(*columns, strict=True):
            turns.setdefault(number, []).append((rollout.contexts[context].prompt_ids, choice, reward, value))
        found.append(turns)
        assert rollout.episodes_dropped == player.ledger.dropped
    assert found[0] == found[1]


@inputs(20)
@given(SETUPS, st.booleans(), st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(0, 99), st.data())
def test_a_restored_collector_goes_on_as_if_it_had_never_stopped(setup, by_turns, amounts, seed, data):
    """Through plain JSON, at any end of a rollout; also where bringing it back loses workers."""
    player, rng = collector(setup), np.random.default_rng(seed)
    stop = data.draw(st.integers(1, len(amounts) - 1))
    for amount in amounts[:stop]:
        play(player, setup, rng, amount, by_turns)
    state, noise = json.loads(json.dumps(player.state_dict())), rng.bit_generator.state
    again, other = collector(setup, data.draw(st.none() | DEATHS)), np.random.default_rng()
    other.bit_generator.state = noise
    again.load_state_dict(state)
    assert json.loads(json.dumps(again.state_dict())) == state
    for slot in again._slots:  # from here on no more are lost
        slot._env.deaths = {}
    for amount in amounts[stop:]:
        assert told(play(again, setup, other, amount, by_turns)) == told(play(player, setup, rng, amount, by_turns))
        assert again.transcripts == player.transcripts
    assert json.dumps(again.state_dict()) == json.dumps(player.state_dict())


SAID = st.lists(st.sampled_from(["one", "TWO", '{"action": "three"}', "?", "", "four"]), min_size=1, max_size=14)


@inputs(100)
@given(SETUPS.map(lambda setup: setup | {"speaks": True}), SAID, st.integers(0, 99))
def test_turns_and_rewards_keep_in_step_whatever_is_said(setup, said, seed):
    """Each answer is a turn with its reward, the environment's or the penalty, and the environment sees what it should."""
    slot = collector(setup)._slots[0]
    slot.reset(seed)
    env, expected, rewards, unread, last = slot._env.env, ScriptedEnv(setup["script"], setup["longest"]), [], 0, None
    given_actions: list[int] = []
    step = env.step
    env.step = lambda action: (given_actions.append(int(action)), step(action))[1]
    shown, _ = expected.reset(seed=seed)
    for answer in said:
        assert slot.context.observation_text == f"At {shown}"
        action = {"one": 0, "TWO": 1, '{"action": "three"}': 2}.get(answer)
        reward, terminated, truncated = slot.step(Said(answer, answer, spoken(answer).ids, True))
        assert slot.parsed == (action is not None)
        unread = 0 if slot.parsed else unread + 1
        if action is None and setup["fallback"] in ("penalize", "end_episode"):
            over = setup["fallback"] == "end_episode" or unread >= setup["patience"]
            assert (reward, terminated, truncated) == (-0.25, over, False)
        else:
            fallback = {"default": 1, "repeat": last}.get(setup["fallback"])
            wanted = fallback if action is None else action
            last = given_actions[-1]
            assert last == wanted or (wanted is None and 0 <= last <= 2)
            shown, *outcome = expected.step(last)
            assert [reward, terminated, truncated] == outcome[:3]
        rewards.append(reward)
        assert [turn.reward for turn in slot.turns] == rewards
        assert [turn.answer for turn in slot.turns] == [own.answer for own in slot.answers] == said[: len(rewards)]
        assert slot.episode_return == pytest.approx(sum(rewards))
        assert slot.live == (not (terminated or truncated))
        if not slot.live:
            break
