"""Any response has an answer: a legal action or a failure with its reason, in bounded time."""

from __future__ import annotations

import json
import re
import time

import pytest
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete, Text
from hypothesis import assume, example, given
from hypothesis import strategies as st

from helpers import spaces
from helpers.fuzz import inputs
from lgym.agents import (
    BlackjackAgent,
    CartPoleAgent,
    FrozenLakeAgent,
    GeneralAgent,
    TaxiAgent,
    TextAgent,
    TextWorldAgent,
)
from lgym.agents.blackjack import BlackjackJsonAgent
from lgym.agents.parsing import PATTERN_LENGTH, action_number, last_json_object, last_match
from lgym.data.prompts.action_candidates import action_of


class Named(TextAgent):
    """Named actions, of any number and any names."""

    system_prompt = "Choose."

    def __init__(self, actions, json_key="action", pattern=None):
        self.actions, self.json_key, self.pattern = tuple(actions), json_key, pattern

    def format_observation(self, observation):
        return str(observation)


def general(space, **settings):
    agent = GeneralAgent(**settings)
    agent.bind(spaces.env(space))
    return agent, space


SPACES = [
    (BlackjackAgent(), Discrete(2)),
    (BlackjackJsonAgent(), Discrete(2)),
    (CartPoleAgent(), Discrete(2)),
    (FrozenLakeAgent(), Discrete(4)),
    (TaxiAgent(), Discrete(6)),
    (TextWorldAgent(free_text=True), None),
    general(Discrete(3, start=-1)),
    general(Discrete(2), actions=["up", "go up"], pattern=r"(?i)action: *(\w+)"),
    general(MultiDiscrete([3, 2])),
    general(MultiDiscrete([20, 20]), pattern=r"\d+, *\d+"),
    general(MultiBinary(2)),
    general(Text(5)),
    (Named(["up", "Up", " up"], pattern=r"\w+$"), Discrete(3)),
]

PIECES = [
    *'{{{}}}[]""":,\\`\n 0129-.eE\0\ud800\U0001f600\u2028',
    *(
        '"action"',
        '{"action":',
        '"up"',
        "up",
        " hit\n",
        "```json\n",
        "```",
        "Action: ",
        "action: up",
        "command: go east\n",
    ),
    *(
        '{"action": "',
        "NaN",
        "-Infinity",
        "1e999",
        "true",
        "null",
        '\\"',
        "\\u12",
        "\\ud800",
        "/*",
        "0, 1",
        ", 1",
        "19,19",
    ),
]
CHARACTERS = st.characters() | st.characters(categories=["Cs"]) | st.sampled_from('{}[]":,\\`\n0-.\0')
ANY_TEXT = st.text(CHARACTERS, max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.sampled_from(["up", "hit", "0", "0, 1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.just("action") | ANY_TEXT, inner, max_size=3)
    ),
    max_leaves=8,
)
JSON = st.builds(json.dumps, VALUES, ensure_ascii=st.booleans(), indent=st.none() | st.just(2))
HUGE = st.integers(1, 6000).map(lambda digits: '{"action":' + "9" * digits + "}")
REPEATED = st.builds(lambda piece, times: piece * times, st.sampled_from(PIECES), st.integers(2, 2000))
CUT = st.builds(lambda text, at: text[: at % (len(text) + 1)], JSON, st.integers(0, 1000))
TEXTS = st.lists(st.sampled_from(PIECES) | ANY_TEXT | JSON | CUT | HUGE | REPEATED, max_size=8).map("".join)
PROSE = st.text(CHARACTERS.filter(lambda character: character != "{"), max_size=20)
"""Without an opening brace, so that no object begins in it."""


def told(parsed):
    """In plain text: actions may be arrays."""
    return repr(parsed)


@inputs(240)
@given(st.sampled_from(SPACES), TEXTS)
def test_every_text_is_a_legal_action_or_a_failure(agent_and_space, text):
    """An illegal action, or an exception, ends a run in the middle of the night."""
    agent, space = agent_and_space
    parsed = agent.parse(text)
    assert told(agent.parse(text)) == told(parsed)
    if not parsed.ok:
        assert parsed.action is None
        assert parsed.reason
    elif space is None:
        assert 1 <= len(parsed.action.split()) <= 12
        assert "\n" not in parsed.action
    elif isinstance(space, Text) and any(map(str.isalpha, space.characters)):
        assert isinstance(parsed.action, str)  # the game gets what was said, whatever the charset
    else:
        assert space.contains(parsed.action)
        assert not parsed.reason


def distinct(names):
    return len({name.strip().casefold() for name in names}) == len(names)


NAMES = st.lists(ANY_TEXT.filter(str.strip), min_size=1, max_size=5).filter(distinct)
PLAIN = st.text(st.characters(codec="ascii", categories=["L", "Zs"]), max_size=20)


@inputs(80)
@given(
    st.lists(
        ANY_TEXT | st.sampled_from(["up", "Up", "UP", " up", "up ", "1", "01"]),
        min_size=1,
        max_size=6,
        unique=True,
    )
)
def test_a_candidate_is_read_as_its_own_action(names):
    """A policy that chooses 'H' and plays 'h' learns from what it did not do."""
    assume(last_json_object(" ".join(names), "action") is None)
    agent = Named(names)
    for number, name in enumerate(names):
        assert action_of(agent, name) == number


@inputs(120)
@given(NAMES, st.data())
def test_an_action_comes_back_from_every_form_of_reply(names, data):
    """By name or number, in JSON that is bare, fenced, nested, in a list or behind what was taken back, amid
    prose."""
    assume(last_json_object(" ".join(names), "action") is None)
    agent, number = Named(names), data.draw(st.integers(0, len(names) - 1))
    counted = not any(re.match(r"\s*[-+.]?\d", name.strip().casefold()) for name in names)
    said = data.draw(
        st.sampled_from(
            [names[number], f"\n{names[number]} ", *([number, str(number), float(number)] * counted)]
        )
    )
    assume(said in (names[number], f"\n{names[number]} ") or str(said) not in names)
    reply = {"why": data.draw(ANY_TEXT), "action": said}
    form = data.draw(
        st.sampled_from(
            ["{}", "```json\n{}\n```", '{{"reply": {}}}', '[{{"action": "other"}}, {}]', '{{"a": 1}} {}']
        )
    )
    text = form.format(json.dumps(reply, ensure_ascii=data.draw(st.booleans())))
    assert agent.parse(data.draw(PROSE) + text + data.draw(PROSE)).action == number


def having(value):
    """The outermost object with an action, of several in a list or an object the last."""
    if isinstance(value, dict) and "action" in value:
        return value
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((found for item in reversed(inner) if (found := having(item)) is not None), None)


@inputs(120)
@given(
    st.lists(st.tuples(PROSE, st.dictionaries(st.just("action") | ANY_TEXT, VALUES, max_size=3)), max_size=5),
    PROSE,
)
def test_the_last_object_with_an_action_wins(parts, prose):
    """A model may have taken back its first answer."""
    text = "".join(before + json.dumps(value) for before, value in parts) + prose
    found = [own for _, value in parts if (own := having(json.loads(json.dumps(value)))) is not None]
    assert repr(last_json_object(text, "action")) == repr(found[-1] if found else None)
    if found:
        assert repr(last_json_object(json.dumps(found[-1]), "action")) == repr(found[-1])  # found again


def tried(text):
    """Every stretch of a text that is an object, from the left, and on after it; what has an action of the
    last."""
    found, start = None, 0
    while start < len(text):
        ends = [end for end in range(start + 1, len(text) + 1) if text[start] == "{" and text[end - 1] == "}"]
        for end in ends:
            try:
                value = json.loads(text[start:end], strict=False)
            except ValueError:
                continue
            own = having(value)
            found, start = found if own is None else own, end - 1
            break
        start += 1
    return found


@inputs(120)
@given(
    st.lists(
        st.sampled_from(
            [
                '{"action":',
                '{ "action": 2}',
                '{"a":',
                "1",
                '"x"',
                "}",
                "}",
                "[",
                "]",
                ",",
                '"b":',
                '"',
                " ",
                "{",
            ]
        ),
        max_size=14,
    )
)
def test_the_search_is_as_trying_every_stretch(pieces):
    """Skipped text must not hold an object that counts."""
    text = "".join(pieces)
    assert last_json_object(text, "action") == tried(text)


@inputs(10)
@example('{"a":', 200_000, "")
@example('{"":}', 200_000, "")
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join), st.integers(1_000, 200_000), TEXTS
)
def test_long_texts_cost_little(piece, length, end):
    """A model that repeats itself must not stop the others: a second is ten times what the worst takes."""
    text = piece * (length // len(piece)) + end
    agents = [SPACES[0][0], SPACES[5][0], SPACES[7][0], SPACES[9][0]]
    start = time.process_time()
    for agent in agents:
        agent.parse(text)
    assert time.process_time() - start < 4.0


PATTERNS = [
    r"\w+",
    r".*",
    r"",
    r"(?i)action: (\w+)",
    r"(a)|(b)",
    r"(?P<action>up)?",
    r"x(?P<action>.)",
    r"\d+,?",
    r"^\s",
    r"(?s).+$",
]


@inputs(120)
@given(st.sampled_from(PATTERNS), TEXTS)
def test_the_match_of_a_pattern_stands_in_the_text(pattern, text):
    """And is never empty: an empty word would be the action of that name."""
    said = last_match(text, pattern)
    assert said is None or (said and said in text[-PATTERN_LENGTH:])


@inputs(120)
@given(
    st.lists(ANY_TEXT | st.sampled_from(["1", "2 up", "0", "up"]), max_size=5),
    ANY_TEXT | st.integers(-1, 5).map(str),
)
def test_a_number_names_an_action_only_where_no_name_begins_with_one(names, said):
    """And a name always does, whatever its case and the space around it."""
    number, alike = action_number(said, names), [name.strip().casefold() for name in names]
    if said.strip().casefold() in alike:
        assert alike[number] == said.strip().casefold()
    elif any(re.match(r"[-+.]?\d", name) for name in alike):
        assert number is None
    else:
        assert number == (int(said) if said.strip() in map(str, range(len(names))) else None)


@pytest.mark.parametrize(
    ("space", "count"),
    [(Discrete(3, start=-1), 3), (MultiDiscrete([3, 2]), 6), (MultiBinary(3), 8), (MultiBinary((2, 2)), 16)],
    ids=str,
)
def test_every_action_of_a_space_is_said_and_read(space, count):
    """Each once: two texts for one action, or none, would be a wrong distribution."""
    agent, _ = general(space)
    actions = [agent.parse(text).action for text in agent.actions]
    assert all(space.contains(action) for action in actions)
    assert len({repr(action) for action in actions}) == len(actions) == count
