"""Demonstrated turns to learn from: each token counts the same, wherever it was written."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from helpers import echo, tiny
from helpers.collectors import make_collector
from helpers.prompts import make_prompt, response_batch
from helpers.scripted import CandidateScorer, TextSpeaker, text_response
from helpers.two_processes import in_two_processes, shared_imitation
from lgym import distributed
from lgym.data.imitation.best_episodes import BestEpisodeBuffer
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.sft_sampler import SFTSampler, _batch
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.memory_prompt import MemoryPrompt
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.memory import WorkingMemory
from lgym.models import LLMConfig
from lgym.modules import GRPO
from lgym.policies import GenerationPolicy
from lgym.policies.distribution_cache import choice_response
from lgym.rollout import Response


def letters(prompt, text, token_ids, choice) -> Response:
    """A token per letter."""
    token_ids = token_ids or tuple(tiny.tokenizer().encode(text))
    return Response(token_ids, (0.0,) * len(token_ids), True, text)


def candidate(prompt, text, token_ids, choice) -> Response:
    assert token_ids == (), "a choice is made anew"
    return choice_response(prompt, choice)


def sampler(
    *pairs, size=10, demonstrated=letters, buffer=None, agent=None, turns_per_pass=None
) -> SFTSampler:
    """A sampler of observations with the responses to them."""
    builder = PromptBuilder(tiny.tokenizer(), "Say the word.", 2048)
    demonstrations = [Demonstration(observation, text) for observation, text in pairs]
    scores_candidates = demonstrated is candidate
    agent = agent or echo.EchoAgent()
    return SFTSampler(
        agent,
        partial(EpisodePrompts, agent, builder),
        demonstrated,
        demonstrations,
        () if buffer is None else (buffer,),
        size,
        scores_candidates=scores_candidates,
        turns_per_pass=turns_per_pass,
    )


@pytest.mark.parametrize("demonstrated", [letters, candidate])
@pytest.mark.parametrize("history", [0, 1, "full"])
@pytest.mark.parametrize("working", [None, WorkingMemory(turns=2)])
def test_demonstrated_turns_are_asked_for_as_in_play(working, history, demonstrated):
    """With the turns before them, and none of the episode before: a policy that learned from other prompts
    than it is asked would have learned little."""
    agent = echo.EchoAgent()
    builder = PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048)
    episodes = [[(0, "red"), (2, "blue"), (1, "green")], [(2, "blue"), (0, "red")]]
    chooses = demonstrated is candidate
    memory = MemoryPrompt(agent, working)
    played = EpisodePrompts(agent, builder, scores_candidates=chooses, history=history, memory=memory)
    asked, demonstrations = [], []
    for turns in episodes:
        played.begin()
        for number, (observation, text) in enumerate(turns):
            asked.append(played.observe(observation, {}))
            choice = agent.actions.index(text) if chooses else -1
            played.respond(demonstrated(asked[-1], text, (), choice), number / 2)
            words = agent.format_observation(observation)
            demonstrations.append(Demonstration(words, text, begins=number == 0, reward=number / 2))
    prompts = partial(EpisodePrompts, agent, builder, history=history)
    found = SFTSampler(
        agent, prompts, demonstrated, demonstrations, None, 10, scores_candidates=chooses, memory=memory
    )
    batch = found.sample(rng())
    assert {prompt.token_ids for prompt in batch.prompts} == {prompt.token_ids for prompt in asked}
    assert len(batch.prompts) == (3 if history == 0 and working is None else 5)


@pytest.mark.parametrize("demonstrated", [letters, candidate])
def test_the_turns_before_are_those_that_were_played(demonstrated):
    """What is learned is the expert's answer; what later prompts show is the noise in its place, as play
    would."""
    agent = echo.EchoAgent()
    builder = PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048)
    prompts = partial(EpisodePrompts, agent, builder, history=1)
    chooses = demonstrated is candidate

    def asked(*turns):
        found = SFTSampler(agent, prompts, demonstrated, turns, None, 10, scores_candidates=chooses)
        return {
            prompt.observation_text: (prompt.token_ids, response.token_ids, response.choice)
            for prompt, response in found._turns
        }

    second = Demonstration("blue", "blue", begins=False)
    noisy = asked(Demonstration("red", "red", played_text="green"), second)
    green, red = (asked(Demonstration("red", text), second) for text in ("green", "red"))
    assert noisy["blue"] == green["blue"] != red["blue"]
    assert noisy["red"] == red["red"] != green["red"]


def rng():
    return np.random.default_rng(0)


def test_every_token_counts_the_same():
    """A response of 1 token and one of 7: each token is an eighth of the loss. Averaged over turns the single
    token would count a half, and a model would learn short responses seven times as fast."""
    batch = sampler(("red", "r"), ("blue", "bluebee")).sample(rng())
    assert sorted(batch.action_mask.sum(1).tolist()) == [1, 7]
    assert batch.loss_scale == pytest.approx(1 / 8)
    policy = GenerationPolicy()
    policy.bind(tiny.llm(dtype=torch.float64))
    module = GRPO(llm=LLMConfig(model="tiny"), policy=policy)
    with torch.no_grad():
        total = 0.0
        for row, token_ids in zip(batch.prompt_index.tolist(), batch.response_ids, strict=True):
            response = Response(token_ids, (0.0,) * len(token_ids), True)
            alone = response_batch([batch.prompts[row]], [0], [response])
            total -= float(policy.evaluate_actions(alone).logprobs.sum())
        assert float(module.sft_loss(batch)) == pytest.approx(total / 8, rel=1e-5)


def test_turns_are_sorted_by_prompt():
    """Catches turns out of the order of their prompts, and padding that counts."""
    prompts = [make_prompt(text) for text in ("red", "green", "blue")]
    responses = [text_response(text) for text in ("a", "bcd", "ef", "", "ghijk")]
    batch = _batch([(prompts[i % 3], response) for i, response in enumerate(responses)])
    order = (0, 3, 1, 4, 2)
    assert batch.prompt_index.tolist() == [0, 0, 1, 1, 2]  # 0 1 2 0 1, sorted
    assert batch.response_ids == tuple(responses[i].token_ids for i in order)
    assert batch.action_mask.sum(1).tolist() == [len(responses[i].token_ids) for i in order]
    assert batch.loss_scale == pytest.approx(1 / sum(len(response.token_ids) for response in responses))
    assert torch.equal(batch.advantages, batch.action_mask.float())
    assert batch.choices.tolist() == [-1] * 5


def test_a_prompt_that_was_made_twice_is_one(monkeypatch):
    """Catches prompts told apart by who made them: the second turn's was forgotten by a full cache and made
    anew."""
    monkeypatch.setattr("lgym.data.prompts.prompt_builder.CACHED_TOKENS", 1)
    batch = sampler(("red", "r"), ("blue", "b"), ("red", "e")).sample(rng())
    assert sorted(prompt.observation_text for prompt in batch.prompts) == ["blue", "red"]
    assert len(batch.prompt_index) == 3


def test_a_pass_over_the_demonstrations_has_each_once():
    source = sampler(*((str(number), str(number)) for number in range(7)), size=3)
    batches = list(source.demonstration_batches(rng()))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert source.num_minibatches == 3
    texts = [prompt.observation_text for batch in batches for prompt in batch.prompts]
    assert sorted(texts) == list("0123456")
    assert texts != sorted(texts)
    assert len(source.sample(rng())) == 3


class Arriving:
    """A buffer to which each rollout brings turns of its own, whatever was played."""

    def __init__(self, *rollouts: str) -> None:
        self._coming = list(rollouts)
        self._turns: list[Demonstration] = []

    def add(self, episodes) -> None:
        self._turns += [Demonstration(letter, letter) for letter in self._coming.pop(0)]

    def turns(self) -> list[Demonstration]:
        return self._turns


def test_a_short_pass_has_the_new_turns_and_some_of_the_others():
    """In the first rollout the demonstrations are new as well, and are not left out for what an untrained
    model did."""
    source = sampler(*((n, n) for n in "0123456"), buffer=Arriving("ab", "cde", ""), size=2, turns_per_pass=4)
    rollout = make_collector([echo.EchoEnv()], source.agent).play(TextSpeaker(echo.WORDS), rng(), episodes=1)

    def passes(first=False):
        source.begin_rollout(first)
        source.add_rollout(rollout)
        for seed in range(20):
            batches = list(source.demonstration_batches(np.random.default_rng(seed)))
            assert [len(batch) for batch in batches] == [2, 2]
            assert source.num_minibatches == 2
            yield "".join(prompt.observation_text for batch in batches for prompt in batch.prompts)

    assert set("".join(passes(first=True))) == set("0123456ab")
    second = list(passes())
    assert all(set("cde") < set(texts) for texts in second)
    assert len({texts.index("c") for texts in second}) == 4  # shuffled
    assert set("".join(second)) == set("0123456abcde")
    assert set("".join(passes())) == set("0123456abcde")  # nothing is new


def test_turns_are_new_until_they_have_been_passed_over():
    """A replay buffer may take several rollouts before the first pass; and demonstrations that were passed
    over are known, whatever the episodes brought so far."""
    rollout = make_collector([echo.EchoEnv()], echo.EchoAgent()).play(
        TextSpeaker(echo.WORDS), rng(), episodes=1
    )
    filling = sampler(("0", "0"), buffer=Arriving("a", "b", "c"), turns_per_pass=3)
    filling.add_rollout(rollout)
    filling.add_rollout(rollout)
    assert filling._is_new.tolist() == [True, True, True]
    filling.begin_rollout(first=False)
    filling.add_rollout(rollout)
    assert filling._is_new.tolist() == [False, False, False, True]

    waiting = sampler(("0", "0"), buffer=Arriving("", "", "a"))
    for first, new in ((True, [True]), (False, [False]), (False, [False, True])):
        waiting.begin_rollout(first)
        waiting.add_rollout(rollout)
        assert waiting._is_new.tolist() == new


def test_two_processes_share_each_minibatch_and_the_experts_work(tmp_path):
    """Both have all turns to imitate and learn from half of them, with the weight of the whole's tokens; the
    expert is asked about each episode once."""
    results = in_two_processes(tmp_path, shared_imitation)
    first, second = results
    assert first["turns"] == second["turns"]
    assert len(first["turns"]) > 6
    assert first["episodes"] == second["episodes"] == 8
    assert [result["asked"] for result in results] == [4 * 3, 4 * 3]
    assert len(first["shares"]) == len(second["shares"]) > 2
    minibatches = [one + other for one, other in zip(first["shares"], second["shares"], strict=True)]
    assert sorted(sum(minibatches, [])) == sorted(first["turns"])
    assert [len(turns) for turns in minibatches[:-1]] == [2 * 2] * (len(minibatches) - 1)
    for weights in zip(first["weights"], second["weights"], strict=True):
        assert sum(weights) / 2 == pytest.approx(1.0)  # DDP takes the mean of the processes
    assert first["drawn"] == second["drawn"] == 2


def test_processes_with_other_turns_are_told(monkeypatch):
    """They would wait for each other for ever."""
    monkeypatch.setattr(distributed, "all_gather_object", lambda mine: [mine, (5, [])])
    with pytest.raises(
        ValueError, match="have 1, 5 turns to imitate: an expert of data.demonstrations has to"
    ):
        list(sampler(("red", "r")).demonstration_batches(rng()))


def test_a_demonstration_names_its_candidate_by_text_or_action():
    """Such as a transcript of a model that writes free text; one that names none is refused before
    training."""
    batch = sampler(("red", "red"), ("blue", '{"action": "BLUE"}'), demonstrated=candidate).sample(rng())
    assert [len(prompt.candidates) for prompt in batch.prompts] == [3, 3]
    chosen = zip(
        [batch.prompts[row] for row in batch.prompt_index.tolist()], batch.choices.tolist(), strict=True
    )
    assert sorted(prompt.candidates[choice] for prompt, choice in chosen) == ["blue", "red"]
    assert batch.action_mask.sum(1).tolist() == [1, 1]
    with pytest.raises(ValueError, match="'purple' names none of the candidates 'red', 'green', 'blue'"):
        sampler(("red", "purple"), demonstrated=candidate)


@pytest.mark.parametrize("policy", [CandidateScorer(), TextSpeaker(echo.WORDS)], ids=["candidates", "text"])
def test_the_best_episodes_of_a_rollout_are_learned_from(policy):
    """With the tokens that were sampled, or as the choice that was made; while there are none, nothing is."""
    agent, buffer = echo.ForgivingEchoAgent(), BestEpisodeBuffer(top_fraction=1.0, min_return=1.0)
    source = sampler(
        demonstrated=candidate if policy.scores_candidates else letters, buffer=buffer, agent=agent
    )
    assert source.sample(rng()) is None
    prompts = {"scores_candidates": policy.scores_candidates}
    player = make_collector([echo.EchoEnv()], agent, prompts=prompts)
    rollout = player.play(policy, np.random.default_rng(0), episodes=40)
    source.add_rollout(rollout)
    batch = source.sample(rng())
    assert rollout.episode_returns.sum() > 3
    assert {turn.observation_text for turn in buffer.turns()} == {
        turn.response_text for turn in buffer.turns()
    }
    assert len(batch) == len(buffer.turns()) >= 2
    assert sum(map(len, source.demonstration_batches(rng()))) == len(buffer.turns())
    if policy.generates_text:
        assert all(token_ids[-1] == tiny.tokenizer().eos_token_id for token_ids in batch.response_ids)
