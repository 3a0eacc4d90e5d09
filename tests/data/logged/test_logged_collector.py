"""Episodes that were written down and read again teach what they would have taught when they were played."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

import gymnasium
import numpy as np
import pytest
import torch

from helpers import tiny
from helpers.collectors import make_collector
from helpers.echo import CountingAgent, EchoAgent, EchoEnv
from helpers.scripted import CandidateScorer
from lgym.data import ReplayBuffer
from lgym.data.logged.collector import LoggedCollector
from lgym.data.logged.episodes import FinalObservation, LoggedEpisode, LoggedTurn, read_episodes
from lgym.data.logged.play import LoggedPlay
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.modules.transitions import rollout_transitions
from lgym.policies import CandidatePolicy


def logged(episodes, agent, gamma=0.5, **settings) -> LoggedCollector:
    prompts = EpisodePrompts(agent, PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048), **settings)
    return LoggedCollector(episodes, prompts, CandidatePolicy().demonstrated, gamma)


def play(collector):
    return collector.play(CandidateScorer(), None, progress=lambda so_far: None)


def transitions(rollout, n) -> Counter:
    batch = rollout_transitions(rollout, gamma=0.5, n=n)
    return Counter(
        (
            batch.prompts[prompt].token_ids,
            choice,
            reward,
            None if following < 0 else batch.prompts[following].token_ids,
            discount,
        )
        for prompt, choice, reward, following, discount in zip(
            batch.prompt_index.tolist(),
            batch.choices.tolist(),
            batch.rewards.tolist(),
            batch.next_prompt_index.tolist(),
            batch.discounts.tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("history", [0, "full"])
@pytest.mark.parametrize(
    ("env", "agent"),
    [
        pytest.param(lambda: EchoEnv(turns=3), EchoAgent(), id="terminated"),
        pytest.param(
            lambda: gymnasium.make("Counting-v0", max_episode_steps=4), CountingAgent(), id="truncated"
        ),
    ],
)
def test_the_log_of_a_rollout_has_its_transitions(tmp_path, env, agent, history, n):
    """From play to JSON lines, and from these to transitions."""
    collector = make_collector(
        [env() for _ in range(3)], agent, kept_transcripts=7, prompts={"history": history}
    )
    rollout = collector.play(CandidateScorer(), np.random.default_rng(0), episodes=7)
    path = tmp_path / "transcripts.jsonl"
    path.write_text("\n".join(json.dumps(asdict(episode)) for episode in collector.transcripts))
    again = play(logged(read_episodes([str(path)], agent), agent, history=history))
    assert transitions(again, n) == transitions(rollout, n)
    assert sorted(again.episode_returns.tolist()) == sorted(rollout.episode_returns.tolist())


TWO = [
    LoggedEpisode(
        (LoggedTurn("a", ("x", "y"), 0, 1.0), LoggedTurn("b", ("x", "y"), 1, 4.0)), terminated=True
    ),
    LoggedEpisode(
        (LoggedTurn("b", ("x", "y"), 0, 2.0),), terminated=False, final=FinalObservation("c", ("x", "y"))
    ),
]


def test_values_are_the_mean_discounted_returns():
    """At c, where nobody acted, the mean over all turns: with 0 a cut would be taken for an end."""
    rollout = play(logged(TWO, EchoAgent()))
    values = {
        p.observation_text: v for p, v in zip(rollout.prompts, rollout.prompt_values.tolist(), strict=True)
    }
    assert values == {"a": 3.0, "b": 3.0, "c": 3.0}


def test_a_log_is_added_to_the_replay_buffer_once():
    """Also behind a stop, and to what live play has left there."""

    def fresh():
        buffer = ReplayBuffer(capacity=9, minibatch_size=1, learning_starts=9)
        return LoggedPlay(0, logged(TWO, EchoAgent()), buffer)

    def keep(training_play):
        batch = rollout_transitions(play(training_play.collector), gamma=0.5, n=1)
        assert training_play.keep(batch), "a log has no more than it has"
        return len(training_play.replay)

    first = fresh()
    assert [keep(first), keep(first)] == [3, 3]
    resumed = fresh()
    resumed.load_state_dict(first.state_dict())
    assert keep(resumed) == 3
    more = LoggedPlay(
        0, logged([*TWO, *TWO], EchoAgent()), ReplayBuffer(capacity=9, minibatch_size=1, learning_starts=9)
    )
    with pytest.raises(ValueError, match=r"a log of 3 turns, and data.logged_episodes now has 6"):
        more.load_state_dict(first.state_dict())
    live = {**first.state_dict(), "collector": {"runners": []}}
    del live["kept"]
    onwards = fresh()
    onwards.load_state_dict(live)
    assert keep(onwards) == 6
    assert torch.equal(onwards.replay._columns["rewards"], torch.tensor([1.0, 4.0, 2.0] * 2))
