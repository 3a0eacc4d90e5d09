"""Demonstrations from files, in the agent's words, and sources by class_path."""

from __future__ import annotations

import json

import jsonargparse
import pytest

from helpers import echo
from lgym.agents import BlackjackAgent
from lgym.data.imitation.demonstrations import (
    Demonstration,
    DemonstrationSource,
    JsonlDemonstrations,
)

RED, BLUE = Demonstration("red", "red"), Demonstration("blue", "blue")


def read(tmp_path, *lines, agent=None, **keys):
    path = tmp_path / "demonstrations.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8"
    )
    return JsonlDemonstrations(str(path), **keys).demonstrations(agent or echo.EchoAgent(), echo.EchoEnv)


@pytest.mark.parametrize(
    "record",
    [
        {"observation": "red", "response": "red"},
        {"observation_text": "red", "response_text": "red"},
        {"prompt": "red", "completion": "red"},
        {"input": "red", "output": "red"},
        {"question": "red", "answer": "red"},
        {"state": 0, "action": 0},
        {"state": "red", "label": 0},
        {"observation": "red", "input": "blue", "response": "red", "output": "blue"},
        {"messages": [{"role": "user", "content": "red"}, {"role": "assistant", "content": "red"}]},
    ],
    ids=str,
)
def test_well_known_forms_need_no_keys(tmp_path, record):
    """The earlier of two well-known keys wins; what is no text goes through the agent."""
    assert read(tmp_path, record) == [RED]


def test_keys_of_ones_own(tmp_path):
    """Given keys are the only ones looked at; one may be given alone."""
    assert read(
        tmp_path, {"x": "blue", "y": "blue", "prompt": "red"}, observation_key="x", response_key="y"
    ) == [BLUE]
    assert read(tmp_path, {"x": "blue", "prompt": "red", "answer": "blue"}, observation_key="x") == [BLUE]
    assert read(
        tmp_path, {"messages": [], "turns": [], "x": "blue", "answer": "blue"}, observation_key="x"
    ) == [BLUE]


def test_every_assistant_message_answers_the_user_before_it(tmp_path):
    """The system's words are the agent's own, and a user who speaks twice is answered on the second."""
    spoken = [
        ("system", "Hi."),
        ("user", "red"),
        ("assistant", "red"),
        ("user", "green"),
        ("user", "blue"),
        ("assistant", "blue"),
    ]
    chat = {"messages": [{"role": role, "content": content} for role, content in spoken]}
    assert read(tmp_path, chat) == [RED, BLUE]


def test_transcripts_leave_out_what_cannot_be_read(tmp_path):
    """A model that speaks has turns that name no action; nobody should learn those."""
    said = [("red", "red"), ("green", "um"), ("blue", "blue")]
    turns = [{"observation_text": shown, "response_text": answer, "reward": 1.0} for shown, answer in said]
    assert read(tmp_path, {"seed": 3, "turns": turns, "return": 3.0}) == [RED, BLUE]


def test_transcripts_say_what_could_be_chosen_and_what_was_paid(tmp_path):
    """Catches a choice among the agent's own actions where others were offered, and a memory without
    rewards."""
    turns = [{"observation_text": "red", "response_text": "red", "reward": 0.5, "probabilities": {"red": 0.9, "blue": 0.1}},
             {"observation_text": "blue", "response_text": "blue", "candidates": ["blue", "green"]}]  # fmt: skip
    first, second = read(tmp_path, {"turns": turns})
    assert (first.candidates, first.reward, first.begins) == (("red", "blue"), 0.5, True)
    assert (second.candidates, second.reward, second.begins) == (("blue", "green"), 0.0, False)
    with pytest.raises(ValueError, match="'candidates' is \\['red', 3\\]"):
        read(tmp_path, {"turns": [{**turns[0], "candidates": ["red", 3]}]})


def test_blank_lines_and_order(tmp_path):
    """Lines come as written, empty ones are skipped, and what stands twice is twice."""
    blue, red = {"input": "blue", "output": "blue"}, {"input": "red", "output": "red"}
    assert read(tmp_path, blue, "", "  ", red, blue, "") == [BLUE, RED, BLUE]


def test_an_observation_of_several_numbers_is_formatted(tmp_path):
    """A tuple of the environment is a list in JSON."""
    (turn,) = read(tmp_path, {"observation": [16, 10, 0], "action": 1}, agent=BlackjackAgent())
    assert turn == Demonstration("Your hand: hard sixteen against ten", "hit")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'a': 1}", r"line 2: Expecting property name.*begins: \{'a': 1\}"),
        ("3", r"line 2: expected a JSON object, not 3"),
        (
            {"prompt": "red", "reply": "red"},
            r"line 2: there is no response: .*label among its keys \['prompt', 'reply'\]",
        ),
        ({"text": "red", "answer": "red"}, r"line 2: there is no observation: .*set observation_key"),
        (
            {"prompt": "red", "answer": "purple"},
            r"line 2: EchoAgent reads no action from 'purple'.*none of red",
        ),
        (
            {"prompt": "red", "action": 7},
            r"line 2: 7 is not text, nor the action of what EchoAgent offers \('red'",
        ),
        ({"prompt": "red", "answer": None}, r"line 2: None is not text"),
        ({"prompt": [], "answer": "red"}, r"line 2: EchoAgent.format_observation cannot read \[\]"),
        (
            {"messages": [{"role": "assistant", "content": "red"}]},
            r"line 2: no user message comes before.*'red'",
        ),
        (
            {"messages": [{"role": "user", "content": [1]}]},
            r"line 2: a message of the user has the content \[1\]",
        ),
        ({"turns": [{"response_text": "red"}]}, r"line 2: there is no observation"),
    ],
    ids=str,
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, line, message):
    """With the file, what is there, and the way out."""
    with pytest.raises(ValueError, match=r"demonstrations.jsonl, " + message):
        read(tmp_path, {"prompt": "red", "answer": "red"}, line)


def test_a_file_without_demonstrations(tmp_path):
    """Nothing to learn from would be a run that does nothing."""
    with pytest.raises(ValueError, match=r"demonstrations.jsonl holds no demonstrations"):
        read(tmp_path, "", " ")
    with pytest.raises(ValueError, match=r"nowhere.jsonl is not a file"):
        JsonlDemonstrations("nowhere.jsonl").demonstrations(echo.EchoAgent(), echo.EchoEnv)


class Silent:
    """An expert without annotations."""

    def act(self, observation, info):
        return None


@pytest.mark.parametrize("policy", ["lgym.agents.experts.BasicStrategy", f"{__name__}.Silent"])
def test_sources_by_class_path(policy):
    """As a YAML names them; an expert needs no annotations to be taken."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--sources", type=list[DemonstrationSource])
    sources = [
        {
            "class_path": "lgym.data.imitation.demonstrations.JsonlDemonstrations",
            "init_args": {"path": "some.jsonl"},
        },
        {
            "class_path": "lgym.data.imitation.expert_demonstrations.ExpertDemonstrations",
            "init_args": {"policy": {"class_path": policy}, "episodes": 3},
        },
    ]
    lines, expert = parser.instantiate_classes(parser.parse_object({"sources": sources})).sources
    assert (lines.path, expert.episodes, type(expert.policy).__name__) == (
        "some.jsonl",
        3,
        policy.rpartition(".")[2],
    )


def test_episodes_below_a_return_are_left_out(tmp_path):
    """Filtered behavior cloning."""
    turn = {"observation": "red", "response": "red"}
    bad, good = ({"turns": [{**turn, "reward": r}, {**turn, "reward": 0.0}]} for r in (0.5, 1.0))
    assert read(tmp_path, bad, good, min_return=0.6) == [RED, RED]
    assert read(tmp_path, bad, good) == [RED] * 4
    with pytest.raises(ValueError, match="no demonstrations that returned 2 or more"):
        read(tmp_path, bad, good, min_return=2.0)
    with pytest.raises(ValueError, match="line 1: min_return asks for the rewards"):
        read(tmp_path, turn, min_return=0.0)
