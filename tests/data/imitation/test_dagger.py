"""An expert's answers in the run's own episodes."""

from __future__ import annotations

import itertools
import json
from functools import partial

import numpy as np
import pytest

from helpers import echo, tiny
from helpers.collectors import make_collector
from helpers.scripted import CandidateScorer, TextSpeaker
from lgym.agents.experts import Uniform
from lgym.data import DAgger, ExpertDemonstrations
from lgym.data.imitation.best_episodes import FinishedEpisode
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.sft_sampler import _episodes
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.types import ConfigError

THREE_WORDS = partial(echo.EchoEnv, turns=3)


class Advisor:
    """Says the word that is shown, and keeps what it was told and asked."""

    def __init__(self) -> None:
        self.heard: list = []

    def begin(self, env) -> None:
        self.heard.append(type(env.unwrapped).__name__)

    def act(self, observation, info):
        self.heard.append(f"asked {observation}")
        return int(observation)

    def played(self, action) -> None:
        self.heard.append(int(action))

    def __deepcopy__(self, memo) -> Advisor:
        return self  # for the test to see what it heard


class OutOfWords(Advisor):
    """Knows the answer to red and green alone."""

    def act(self, observation, info):
        return None if observation == 2 else int(observation)


class Unseeded(echo.EchoEnv):
    """Shows what it likes, whatever its seed."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


def attached(
    make_env=THREE_WORDS, policy=None, agent=None, speaks=False, builder=PromptBuilder, **settings
) -> DAgger:
    buffer = DAgger(policy or Advisor(), **settings)
    agent = agent or echo.EchoAgent()
    builder = builder(tiny.tokenizer(), agent.system_prompt, 2048)
    buffer.attach(make_env, EpisodePrompts(agent, builder, scores_candidates=not speaks))
    return buffer


def episodes(policy, make_env=THREE_WORDS, agent=None, count=6) -> list[FinishedEpisode]:
    """Episodes that a scripted policy has played as a run plays them."""
    player = make_collector(
        [make_env(), make_env()],
        agent or echo.EchoAgent(),
        prompts={"scores_candidates": policy.scores_candidates},
    )
    return _episodes(player.play(policy, np.random.default_rng(0), episodes=count))


def test_every_turn_gets_the_experts_answer():
    """Where the model was wrong, too; the observations and candidates are those that it had."""
    played = episodes(CandidateScorer())
    buffer = attached()
    buffer.add(played)
    asked = [turn for episode in played for turn in episode.turns]
    assert any(turn.response_text != turn.observation_text for turn in asked)
    words = {turn.observation_text for turn in asked}
    assert len(buffer) == 6
    assert set(buffer.turns()) == {Demonstration(word, word, echo.WORDS) for word in words}


def test_the_expert_sees_each_outcome_once_and_hears_what_was_played():
    """A planner is begun with the environment and told the model's actions, not its own."""
    (episode,) = episodes(CandidateScorer(), count=1)
    expert = Advisor()
    attached(policy=expert).add([episode])
    shown = [echo.WORDS.index(turn.observation_text) for turn in episode.turns]
    answers = [echo.WORDS.index(turn.response_text) for turn in episode.turns]
    told = [
        event for number, action in zip(shown, answers, strict=True) for event in (f"asked {number}", action)
    ]
    assert expert.heard == ["EchoEnv", *told]


class PatientAgent(echo.EchoAgent):
    """Asks again where it could not read an answer, and the environment does not move."""

    fallback = "penalize"
    penalty = -0.5
    patience = 2


def test_what_nobody_could_read_is_answered_as_well():
    """The observation is asked again, and the expert is asked about it once: nothing has happened."""
    policy = TextSpeaker(("red", "what?"))
    played = episodes(policy, agent=PatientAgent(), count=10)
    unread = [e for e in played if "what?" in {turn.response_text for turn in e.turns}]
    assert unread
    expert = Advisor()
    buffer = attached(policy=expert, agent=PatientAgent(), speaks=True)
    buffer.add(unread)
    assert {(turn.observation_text, turn.response_text) for turn in buffer.turns()} == {
        (turn.observation_text, turn.observation_text) for episode in unread for turn in episode.turns
    }
    assert all(turn.response_ids == () for turn in buffer.turns()), "the tokens were those of another answer"
    read = [[turn.response_text for turn in episode.turns].count("red") for episode in unread]
    asked = [event for event in expert.heard if str(event).startswith("asked")]
    assert len(asked) == sum(
        min(3, number + 1) for number in read
    )  # at first, and after each step but the last
    assert len(asked) < sum(len(episode.turns) for episode in unread)


def test_where_the_expert_sees_no_way_on_its_answers_end():
    """What it said before is kept."""
    played = episodes(CandidateScorer(), count=20)
    buffer = attached(policy=OutOfWords())
    buffer.add(played)
    assert {turn.response_text for turn in buffer.turns()} == {"red", "green"}
    shown = [[turn.observation_text for turn in episode.turns] for episode in played]
    lengths = [[*words, "blue"].index("blue") for words in shown]
    assert {0, 3} < set(lengths)
    assert [len(turns) for turns in buffer._episodes] == lengths


def test_an_environment_without_a_seed_is_refused():
    """Its expert would answer to other observations than the model had."""
    played = episodes(CandidateScorer(), Unseeded, count=20)
    with pytest.raises(ValueError, match="Unseeded does not honor its seed.* Leave data.dagger out"):
        attached(Unseeded).add(played)


class Drifting(echo.EchoEnv):
    """Honors its seed in reset alone, and pays nothing, so that nothing else tells it."""

    def step(self, action):
        self.np_random.integers(3, size=next(DRIFT))
        _, _, terminated, truncated, info = super().step(action)
        return self._shown, 0.0, terminated, truncated, info


DRIFT = itertools.count()


class Shortening(echo.EchoEnv):
    """Each episode is a turn shorter than the one before."""

    lengths = itertools.count(40, -1)

    def reset(self, *, seed=None, options=None):
        self.turns = next(Shortening.lengths)
        return super().reset(seed=seed)

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 0.0, *rest


@pytest.mark.parametrize("make_env", [partial(Drifting, turns=3), Shortening])
def test_episodes_that_go_another_way_are_refused(make_env):
    """Though they begin alike and pay the same: the expert's answers would be those to other observations."""
    played = episodes(CandidateScorer(), make_env, count=4)
    with pytest.raises(ValueError, match="was another one when the same answers were played again"):
        attached(make_env).add(played)


def test_texts_that_ask_the_same_are_no_other_way():
    """One prompt stands for both, with the text that came first."""

    class Trimming(echo.EchoAgent):
        def format_observation(self, observation):
            return super().format_observation(observation) + " " * next(spaces)

    spaces = itertools.cycle((0, 1))
    played = episodes(CandidateScorer(), agent=Trimming(), count=4)
    buffer = attached(agent=Trimming(), builder=TrimmingBuilder)
    buffer.add(played)
    assert len(buffer.turns()) >= 3


class TrimmingBuilder(PromptBuilder):
    """Renders as a chat template that strips what is said."""

    def prompt(self, observation_text, candidates=()):
        return super().prompt(observation_text.strip(), candidates)


def test_an_expert_that_never_sees_a_way_teaches_nothing():
    silent = Advisor()
    silent.act = lambda observation, info: None
    buffer = attached(policy=silent)
    buffer.add(episodes(CandidateScorer(), count=4))
    assert buffer.turns() == []


@pytest.mark.parametrize("method", ["begin", "act", "played"])
def test_an_expert_that_fails_is_named(method):
    """And not the environment that it was asked about."""
    lost = Advisor()
    setattr(lost, method, lambda *_: {}["no rule"])
    with pytest.raises(
        ConfigError, match="The expert Advisor raised KeyError: 'no rule'. That was at the obs"
    ):
        attached(policy=lost).add(episodes(CandidateScorer(), count=2))


def failing_at_the_end() -> Advisor:
    """Is told of two turns, and fails at the third, which is the last."""
    lost, told = Advisor(), itertools.count(1)
    lost.played = lambda action: {1: "first", 2: "second"}[next(told)]
    return lost


def test_an_expert_that_fails_in_the_last_turn_is_named_too():
    """Nobody asks it for an answer there, and its failure was lost."""
    with pytest.raises(ConfigError, match="The expert Advisor raised KeyError: 3"):
        attached(policy=failing_at_the_end()).add(episodes(CandidateScorer(), count=1))
    source = ExpertDemonstrations(failing_at_the_end(), episodes=1)
    with pytest.raises(ConfigError, match="The expert Advisor raised KeyError: 3"):
        source.demonstrations(echo.EchoAgent(), THREE_WORDS)


def test_a_first_observation_that_is_another_one_is_told_before_anything_is_played():
    class NextWord(echo.EchoEnv):
        resets = 0

        def reset(self, *, seed=None, options=None):
            self.resets += 1
            self._shown = self.resets % 3
            return self._shown, {}

    DAgger(Advisor()).try_out(echo.EchoAgent(), THREE_WORDS, seed=7)
    with pytest.raises(ValueError, match="seed 7 showed 'green', and then 'blue': NextWord does not honor"):
        DAgger(Advisor()).try_out(echo.EchoAgent(), NextWord, seed=7)


def test_an_answer_that_names_no_action_is_told():
    """With the expert, its answer and the observation."""
    (episode,) = episodes(CandidateScorer(), count=1)
    expert = Advisor()
    expert.act = lambda observation, info: 7
    with pytest.raises(ValueError, match="Advisor answered 7 to the observation"):
        attached(policy=expert).add([episode])


def test_the_environment_is_closed_whatever_happens():
    closed = []

    class Closing(echo.EchoEnv):
        def close(self):
            closed.append(True)

    attached(Closing).add(episodes(CandidateScorer(), echo.EchoEnv, count=1))
    assert closed == [True]


def test_the_oldest_episodes_leave_and_the_rest_survive_a_checkpoint():
    """What was written is read from JSON, as plain numbers and texts."""
    played = episodes(CandidateScorer(), count=6)
    buffer = attached(capacity=4)
    for episode in played:
        buffer.add([episode])
    assert len(buffer) == 4
    restored = attached(capacity=4)
    restored.add(played[:1])
    restored.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    assert list(restored._episodes) == [
        tuple(
            Demonstration(turn.observation_text, turn.observation_text, echo.WORDS) for turn in episode.turns
        )
        for episode in played[2:]
    ]
    with pytest.raises(ValueError, match="dagger's capacity is 0; it must be 1 or more"):
        DAgger(Advisor(), capacity=0)


def test_an_expert_that_draws_is_the_same_in_a_resumed_run():
    """It begins each rollout anew: what it drew before leaves no trace."""
    first, second = episodes(CandidateScorer(), count=2), episodes(CandidateScorer(), count=6)[2:]
    whole, resumed = attached(policy=Uniform(3)), attached(policy=Uniform(3))
    whole.add(first)
    whole.add(second)
    resumed.add(second)
    assert list(whole._episodes)[2:] == list(resumed._episodes)
