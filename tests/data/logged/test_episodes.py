"""Episodes from files: what is read, and what is said of a line that cannot be."""

from __future__ import annotations

import json

import pytest

from helpers.echo import EchoAgent
from lgym.agents import TextAgent
from lgym.data.logged.episodes import LoggedTurn, read_episodes

WORDS = EchoAgent.actions
TURN = {"observation_text": "red", "response_text": "green", "reward": 0.5}
EPISODE = {"turns": [TURN, TURN], "terminated": True, "truncated": False}


class StatefulAgent(TextAgent):
    """Its candidates depend on the observation, so that a log has to say them."""

    system_prompt = "Choose."

    def format_observation(self, observation):
        return str(observation)

    def candidates(self, observation, info):
        return ["up", "down"]


def read(tmp_path, *records, agent=None):
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n\n".join(record if isinstance(record, str) else json.dumps(record) for record in records)
    )
    return read_episodes([str(path)], agent or EchoAgent())


def test_an_episode_is_read(tmp_path):
    (episode,) = read(tmp_path, {**EPISODE, "seed": 3})
    assert episode.turns == (LoggedTurn("red", WORDS, 1, 0.5),) * 2
    assert (episode.terminated, episode.final, episode.episode_return) == (True, None, 1.0)


def test_actions_and_observations_of_the_environment_are_put_into_words(tmp_path):
    turn = {"observation": 2, "action": 0, "reward": -1}
    (episode,) = read(tmp_path, {**EPISODE, "turns": [turn]})
    assert episode.turns == (LoggedTurn("blue", WORDS, 0, -1.0),)


def test_candidates_of_the_observation_that_it_was_cut_off_at_are_not_guessed(tmp_path):
    """Catches a maximum over the choices of the turn before, where they differ from turn to turn."""
    first, last = ({"observation": text, "response": text, "reward": 1, "candidates": [text, "wait"]}
                   for text in ("up", "down"))  # fmt: skip
    cut = {"turns": [first, last], "terminated": False, "truncated": True, "final_observation_text": "hall"}
    (episode,) = read(tmp_path, cut, agent=StatefulAgent())
    assert [turn.observation_text for turn in episode.turns] == ["up"]
    assert episode.final == ("down", ("down", "wait"))


@pytest.mark.parametrize(
    "offered", [{"candidates": ["down", "up"]}, {"probabilities": {"down": 0.1, "up": 0.9}}]
)
def test_candidates_come_from_the_line(tmp_path, offered):
    turn = {"observation": "hall", "response": "up", "reward": 1, **offered}
    (episode,) = read(tmp_path, {**EPISODE, "turns": [turn]}, agent=StatefulAgent())
    assert episode.turns == (LoggedTurn("hall", ("down", "up"), 1, 1.0),)


def test_an_episode_that_was_cut_off_keeps_the_observation_that_it_ended_at(tmp_path):
    (episode,) = read(
        tmp_path, {**EPISODE, "terminated": False, "truncated": True, "final_observation_text": "blue"}
    )
    assert (len(episode.turns), episode.terminated, episode.final.text) == (2, False, "blue")


def test_without_that_observation_the_last_turn_is_left_out(tmp_path):
    turns = [TURN, {**TURN, "observation_text": "green"}]
    cut = {"turns": turns, "terminated": False, "truncated": True}
    (episode,) = read(tmp_path, cut)
    assert (len(episode.turns), episode.final.text) == (1, "green")
    with pytest.raises(ValueError, match="no turn to learn from"):
        read(tmp_path, {**cut, "turns": [TURN]})


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("{", "line 3: Expecting"),
        ("[]", r"line 3: expected a JSON object, not \[\]"),
        ({"terminated": True}, r"line 3: there is no list of turns among its keys \['terminated'\]"),
        ({"turns": [TURN], "truncated": True}, "line 3: 'terminated' is 'missing'"),
        ({"turns": [TURN], "terminated": 1, "truncated": True}, "line 3: 'terminated' is 1"),
        ({"turns": [TURN], "terminated": True}, "line 3: 'truncated' is 'missing'"),
        (
            {**EPISODE, "turns": [TURN, {"observation": 1, "response": "red"}]},
            "turn 2: 'reward' is 'missing'",
        ),
        ({**EPISODE, "turns": [{**TURN, "reward": float("nan")}]}, "turn 1: 'reward' is nan"),
        ({**EPISODE, "turns": [{**TURN, "reward": True}]}, "turn 1: 'reward' is True"),
        ({**EPISODE, "turns": [{**TURN, "response_text": "pink"}]}, "'pink' is none of the candidates"),
        ({**EPISODE, "turns": [{**TURN, "candidates": "red"}]}, "'candidates' is 'red'"),
        ({**EPISODE, "turns": [{"response": "red", "reward": 1}]}, "turn 1: there is no observation"),
        ({**EPISODE, "turns": [3]}, "turn 1: expected a JSON object, not 3"),
        ({**EPISODE, "final_observation_text": 3}, "'final_observation_text' is 3"),
    ],
)
def test_a_broken_line_is_named(tmp_path, broken, said):
    with pytest.raises(ValueError, match=said):
        read(tmp_path, EPISODE, broken)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.jsonl is not a file"):
        read_episodes([str(tmp_path / "none.jsonl")], EchoAgent())
