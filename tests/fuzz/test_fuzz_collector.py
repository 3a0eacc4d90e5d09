"""Any environment, agent and loss of workers: the record is what was played, and every episode is counted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.collectors import choices_of, plain_values
from helpers.fuzz import inputs
from helpers.scripted import (
    TOKENIZER,
    CandidateScorer,
    DyingEnv,
    Numbered,
    ScriptedEnv,
    TextSpeaker,
    prompt_value,
    text_response,
)
from lgym.agents.base import FALLBACKS
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.memory_prompt import MemoryPrompt
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.rollout.collector import Collector
from lgym.data.rollout.env_runner import EnvRunner
from lgym.memory import EpisodicMemory

pytestmark = pytest.mark.filterwarnings("ignore:.*is dropped and begun anew:UserWarning")

SETUPS = st.fixed_dictionaries(
    {
        "script": st.integers(0, 2**31),
        "longest": st.integers(1, 6),
        "num_envs": st.integers(1, 4),
        "group_size": st.integers(1, 3),
        "more_groups": st.integers(0, 2),
        "history": st.just("full") | st.integers(0, 2),
        "generates_text": st.booleans(),
        "fallback": st.sampled_from(FALLBACKS),
        "patience": st.integers(1, 3),
    }
)
DEATHS = st.dictionaries(
    st.integers(100, 112), st.lists(st.integers(0, 5), min_size=1, max_size=2), max_size=6
)


def collector(setup, deaths=None, more_groups=True) -> Collector:
    settings = {
        "fallback": setup["fallback"],
        "patience": setup["patience"],
        "default_action": 1,
        "penalty": -0.25,
    }
    agent = type("Agent", (Numbered,), settings)()
    builder = PromptBuilder(TOKENIZER, agent.system_prompt, 2048)
    envs = [ScriptedEnv(setup["script"], setup["longest"]) for _ in range(setup["num_envs"])]
    envs = envs if deaths is None else [DyingEnv(env, deaths) for env in envs]
    memory = EpisodicMemory()  # nothing is stored in it or shown of it, but turns are remembered
    runners = [
        EnvRunner(
            env,
            EpisodePrompts(
                agent,
                builder,
                scores_candidates=not setup["generates_text"],
                history=setup["history"],
                memory=MemoryPrompt(agent, episodic=memory),
            ),
        )
        for env in envs
    ]
    return Collector(
        runners,
        100,
        kept_transcripts=2,
        group_size=setup["group_size"],
        dynamic_sampling_groups=setup["more_groups"] if more_groups else 0,
    )


def play(player, setup, rng, amount, by_turns):
    policy = TextSpeaker() if setup["generates_text"] else CandidateScorer()
    if by_turns:
        return player.play(policy, rng, turns=amount * setup["num_envs"])
    return player.play(policy, rng, episodes=amount * setup["group_size"])


def turns_of(rollout, name):
    return getattr(rollout, name)[rollout.mask].tolist()


def check_streams(rollout):
    """In each stream, values follow on each other, and only an episode that has ended gives way to
    another."""
    assert not rollout.rewards[~rollout.mask].any()
    assert rollout.terminated[~rollout.mask].all()
    assert not (rollout.truncated & (rollout.terminated | ~rollout.mask)).any()
    assert not rollout.next_values[rollout.terminated].any()
    assert rollout.values[rollout.mask].tolist() == pytest.approx(
        [prompt_value(rollout.prompts[number]) for number in turns_of(rollout, "prompt_index")]
    )
    for stream in range(len(rollout.mask)):
        steps = rollout.mask[stream].nonzero().squeeze(1).tolist()
        for here, after in zip(steps, steps[1:], strict=False):
            ended = bool(rollout.terminated[stream, here] or rollout.truncated[stream, here])
            assert ended == (rollout.episode_ids[stream, here] != rollout.episode_ids[stream, after]).item()
            if not ended:
                assert after == here + 1
                assert rollout.next_values[stream, here] == rollout.values[stream, after]
        if steps:
            assert rollout.terminated[stream, steps[-1]] or rollout.truncated[stream, steps[-1]]


@inputs(30)
@given(
    SETUPS,
    st.none() | DEATHS,
    st.booleans(),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(0, 99),
)
def test_every_episode_is_counted(setup, deaths, by_turns, amounts, seed):
    """By its return, its seed and the counts; and every stream is one episode after the other."""
    player, rng = collector(setup, deaths), np.random.default_rng(seed)
    returns, ended, lengths, begun, turns = {}, [], [], 0, 0
    for amount in amounts:
        rollout = play(player, setup, rng, amount, by_turns)
        check_streams(rollout)
        numbers = turns_of(rollout, "episode_ids")
        assert turns_of(rollout, "reset_seeds") == [100 + number // setup["group_size"] for number in numbers]
        for number, reward in zip(numbers, turns_of(rollout, "rewards"), strict=True):
            returns.setdefault(number, []).append(reward)
        ended += rollout.episode_returns.tolist()
        lengths += rollout.episode_lengths.tolist()
        state, counts = player.state_dict(), player.counts
        under_way = [runner["number"] for runner in state["runners"] if runner is not None]
        assert counts.played == counts.finished + counts.dropped + len(under_way)
        assert counts.finished == len(ended) == rollout.total_episodes
        turns += int(rollout.mask.sum())
        assert rollout.total_turns == counts.turns == turns
        if by_turns:
            assert int(rollout.mask.sum()) >= amount * setup["num_envs"]
            assert deaths or rollout.mask.all()
        else:
            assert not under_way
            more, rest = divmod(len(set(numbers)) - amount * setup["group_size"], setup["group_size"])
            assert (rest, 0 <= more <= setup["more_groups"]) == (0, True)
            assert sorted(set(numbers)) == list(range(begun, begun + len(set(numbers))))
            begun += len(set(numbers))
        if not (by_turns and deaths):  # where a lost episode's first turns may be in a rollout before
            whole = [rewards for number, rewards in returns.items() if number not in under_way]
            assert sorted(ended) == pytest.approx(sorted(map(sum, whole)), abs=1e-5)
            assert sorted(lengths) == sorted(map(len, whole))
    assert counts.dropped == 0 or deaths is not None
    player.close()


@inputs(20)
@given(SETUPS, DEATHS, st.integers(1, 4))
def test_lost_workers_change_nothing(setup, deaths, amount):
    """Greedily the same episodes are played, turn by turn, as where none is lost."""
    setup = setup | {"generates_text": False}
    outcomes = []
    for losses in (None, deaths):
        player = collector(setup, losses, more_groups=False)
        rollout = play(player, setup, None, amount, False)
        check_streams(rollout)
        turns: dict[int, list] = {}
        columns = [
            turns_of(rollout, name) for name in ("episode_ids", "prompt_index", "rewards", "next_values")
        ]
        choices = choices_of(rollout)[rollout.mask].tolist()
        for number, prompt, reward, value, choice in zip(*columns, choices, strict=True):
            turns.setdefault(number, []).append((rollout.prompts[prompt].token_ids, choice, reward, value))
        outcomes.append(turns)
        assert rollout.episodes_dropped == player.counts.dropped
    assert outcomes[0] == outcomes[1]


@inputs(20)
@given(
    SETUPS, st.booleans(), st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(0, 99), st.data()
)
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
    for runner in again.runners:  # from here on no more are lost
        runner._env.deaths = {}
    for amount in amounts[stop:]:
        expected = plain_values(play(player, setup, rng, amount, by_turns))
        assert plain_values(play(again, setup, other, amount, by_turns)) == expected
        assert again.transcripts == player.transcripts
    assert json.dumps(again.state_dict()) == json.dumps(player.state_dict())


ANSWERS = st.lists(
    st.sampled_from(["one", "TWO", '{"action": "three"}', "?", "", "four"]), min_size=1, max_size=14
)


@inputs(100)
@given(SETUPS.map(lambda setup: setup | {"generates_text": True}), ANSWERS, st.integers(0, 99))
def test_turns_and_rewards_keep_in_step_whatever_is_answered(setup, answers, seed):
    """Each answer is a turn with its reward, the environment's or the penalty, and the environment sees what
    it should."""
    runner = collector(setup).runners[0]
    runner.reset(seed)
    env, expected, rewards, unread, last = (
        runner._env.env,
        ScriptedEnv(setup["script"], setup["longest"]),
        [],
        0,
        None,
    )
    given_actions: list[int] = []
    step = env.step
    env.step = lambda action: (given_actions.append(int(action)), step(action))[1]
    shown, _ = expected.reset(seed=seed)
    for answer in answers:
        assert runner.prompt.observation_text == f"At {shown}"
        action = {"one": 0, "TWO": 1, '{"action": "three"}': 2}.get(answer)
        reward, terminated, truncated = runner.step(text_response(answer))
        assert runner.parsed == (action is not None)
        unread = 0 if runner.parsed else unread + 1
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
        assert [turn.reward for turn in runner.prompts.turns] == rewards
        assert (
            [turn.answer for turn in runner.prompts.turns]
            == [response.action_text for response in runner.responses]
            == answers[: len(rewards)]
        )
        assert runner.episode_return == pytest.approx(sum(rewards))
        assert runner.live == (not (terminated or truncated))
        if not runner.live:
            break
