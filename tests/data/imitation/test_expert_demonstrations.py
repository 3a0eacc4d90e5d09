"""Demonstrations that scripted experts play, with and without noise."""

from __future__ import annotations

from functools import partial

import gymnasium
import pytest

from helpers import echo
from lgym.agents import BlackjackAgent, TextAgent
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.expert_demonstrations import ExpertDemonstrations
from lgym.types import ParsedAction


class Namer:
    """Says the word that is shown; with a `shift`, another one."""

    def __init__(self, shift: int = 0, as_text: bool = False) -> None:
        self.shift, self.as_text = shift, as_text

    def act(self, observation, info):
        action = (observation + self.shift) % 3
        return f" {echo.WORDS[action].upper()} " if self.as_text else action


def shown_after(seed: int) -> str:
    return echo.WORDS[echo.EchoEnv().reset(seed=seed)[0]]


def test_an_expert_is_played_from_its_seeds_on():
    """The words that those reset seeds show, each answered with the action's name, and what could be
    chosen."""
    turns = ExpertDemonstrations(Namer(), episodes=4, seed=7).demonstrations(echo.EchoAgent(), echo.EchoEnv)
    words = [shown_after(seed) for seed in (7, 8, 9, 10)]
    assert turns == [Demonstration(word, word, echo.WORDS) for word in words]
    assert len(set(words)) > 1


def test_an_expert_that_answers_in_text_is_taken_at_its_word():
    """How it said it is what is learned; the environment gets the action."""
    turns = ExpertDemonstrations(Namer(as_text=True), episodes=2, min_return=1.0).demonstrations(
        echo.EchoAgent(), echo.EchoEnv
    )
    assert turns == [
        Demonstration(word, f" {word.upper()} ", echo.WORDS) for word in map(shown_after, (0, 1))
    ]


class Sometimes(Namer):
    """Right in its first episode, wrong in its second, and so on."""

    def act(self, observation, info):
        self.shift = (self.shift + 1) % 2
        return (observation + 1 - self.shift) % 3


def test_an_expert_may_keep_its_good_episodes_only():
    """Of right, wrong, right, the first and third; that none is good enough is told."""
    agent = echo.EchoAgent()
    turns = ExpertDemonstrations(Sometimes(), episodes=3, min_return=1.0).demonstrations(agent, echo.EchoEnv)
    assert turns == [Demonstration(word, word, echo.WORDS) for word in map(shown_after, (0, 2))]
    with pytest.raises(ValueError, match=r"None of the 5 episodes of Namer returned 1 or more, the best 0"):
        ExpertDemonstrations(Namer(shift=1), episodes=5, min_return=1.0).demonstrations(agent, echo.EchoEnv)


class Listener(Namer):
    """Keeps what it is told that was played."""

    def __init__(self):
        super().__init__()
        self.told = []

    def played(self, action):
        self.told.append(int(action))


def test_noise_plays_other_answers_than_are_learned():
    """Of 400 turns about 0.3 * 2 / 3 are played otherwise; what is learned is always the word that was shown,
    the reward is that of what was played, and the expert is told."""
    expert = Listener()
    source = ExpertDemonstrations(expert, episodes=4, noise=0.3)
    turns = source.demonstrations(echo.EchoAgent(), lambda: echo.EchoEnv(turns=100))
    assert all(turn.response_text == turn.observation_text for turn in turns)
    played = [turn.played_text or turn.response_text for turn in turns]
    assert [echo.WORDS[action] for action in expert.told] == played
    assert [turn.reward for turn in turns] == [
        float(text == turn.response_text) for text, turn in zip(played, turns, strict=True)
    ]
    others = sum(turn.reward == 0 for turn in turns)
    assert 50 < others < 115, "80 are expected, with a standard deviation of 8"
    again = ExpertDemonstrations(Namer(), episodes=4, noise=0.3)
    second = again.demonstrations(echo.EchoAgent(), lambda: echo.EchoEnv(turns=100))
    assert [turn.played_text for turn in second] == [turn.played_text for turn in turns]
    assert len({tuple(played[start : start + 100]) for start in range(0, 400, 100)}) == 4


def test_noise_is_refused_where_it_cannot_be_drawn():
    with pytest.raises(ValueError, match=r"The expert's noise is 1.5; it must be 0 or more, and below 1"):
        ExpertDemonstrations(Namer(), noise=1.5)

    class Nameless(echo.EchoAgent):
        actions = ()

        def extract_action(self, text):
            return ParsedAction(echo.WORDS.index(text.strip().lower()))

    source = ExpertDemonstrations(Namer(as_text=True), episodes=9, noise=0.5)
    with pytest.raises(ValueError, match=r"noise is 0.5, which draws .*, and Nameless names none: leave"):
        source.demonstrations(Nameless(), echo.EchoEnv)


class Puzzled(Namer):
    """Knows no answer to the word blue."""

    def act(self, observation, info):
        return None if echo.WORDS[observation] == "blue" else super().act(observation, info)


def test_an_expert_that_sees_no_way_on_ends_the_episode():
    """Its turns so far are learned from. An episode that it cannot even begin is refused."""
    env = partial(echo.EchoEnv, turns=50)
    seeds = [seed for seed in range(20) if shown_after(seed) != "blue"]
    turns = ExpertDemonstrations(Puzzled(), 1, seed=seeds[0]).demonstrations(echo.EchoAgent(), env)
    everything = ExpertDemonstrations(Namer(), 1, seed=seeds[0]).demonstrations(echo.EchoAgent(), env)
    assert turns == everything[: [turn.response_text for turn in everything].index("blue")]
    blue = next(seed for seed in range(20) if shown_after(seed) == "blue")
    with pytest.raises(ValueError, match="Puzzled answered None to the observation 2"):
        ExpertDemonstrations(Puzzled(), 1, seed=blue).demonstrations(echo.EchoAgent(), env)


class Mute(TextAgent):
    """Has no names for its actions, and reads none."""

    system_prompt = ""

    def format_observation(self, observation):
        return str(observation)

    def extract_action(self, text):
        return ParsedAction.failure("I cannot read")


def test_an_answer_that_the_agent_cannot_read_is_refused():
    """It would be learned, and then penalized."""
    with pytest.raises(
        ValueError, match=r"Namer answered \d to the observation \d: \d is not text.*Mute offers \(no cand"
    ):
        ExpertDemonstrations(Namer()).demonstrations(Mute(), echo.EchoEnv)
    with pytest.raises(
        ValueError, match=r"Namer answered ' [A-Z]+ ' to .*Mute reads no action from .*I cannot read"
    ):
        ExpertDemonstrations(Namer(as_text=True)).demonstrations(Mute(), echo.EchoEnv)
    with pytest.raises(ValueError, match=r"episodes are 0; give 1 or more"):
        ExpertDemonstrations(Namer(), episodes=0)


def test_the_environment_is_closed():
    """Also when the expert fails."""
    closed = []

    class Closing(echo.EchoEnv):
        def close(self):
            closed.append(True)

    with pytest.raises(ValueError, match="Mute"):
        ExpertDemonstrations(Namer()).demonstrations(Mute(), Closing)
    ExpertDemonstrations(Namer(), episodes=1).demonstrations(echo.EchoAgent(), Closing)
    assert closed == [True, True]


class HitBelow17:
    def act(self, observation, info):
        return int(observation[0] < 17)


def test_an_expert_plays_a_registered_environment():
    """Blackjack's observations are tuples, and a hand may have several turns."""
    turns = ExpertDemonstrations(HitBelow17(), episodes=50).demonstrations(
        BlackjackAgent(), lambda: gymnasium.make("Blackjack-v1")
    )
    assert len(turns) > 50
    sixteen = [turn for turn in turns if turn.observation_text.startswith("Your hand: hard sixteen")]
    assert {turn.response_text for turn in sixteen} == {"hit"}
    assert {turn.response_text for turn in turns} == {"hit", "stay"}
