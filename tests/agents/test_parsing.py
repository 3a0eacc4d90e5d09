"""How an action is read from free text: JSON, then the pattern, then `extract_action`."""

import json
import random
import time

import gymnasium
import pytest
from gymnasium.spaces import Discrete

from helpers import echo, tiny
from helpers.spaces import SpacesEnv
from lgym.agents import BlackjackAgent, CartPoleAgent, GeneralAgent, TextAgent
from lgym.agents.parsing import (
    JSON_LENGTH,
    PATTERN_LENGTH,
    action_number,
    last_json_object,
    last_match,
    value_text,
)
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.rollout.env_runner import EnvRunner
from lgym.rollout import Response
from lgym.types import ParsedAction


class Lift(TextAgent):
    """Named actions, and no more."""

    system_prompt = "Go up or down."
    actions = ("Down", "Up")

    def format_observation(self, observation):
        return f"Floor {observation}"


class Signed(Lift):
    """Named actions and a form of words."""

    pattern = r"(?i)action: (\w+)"


class Dial(TextAgent):
    """An action that is no name: a number in the reply."""

    system_prompt = "Turn the dial."

    def format_observation(self, observation):
        return str(observation)

    def extract_action(self, text):
        try:
            return ParsedAction(float(text))
        except ValueError:
            return ParsedAction.failure(f"{text!r} is no number")


class Echo(Dial):
    """Takes any words, so that what it was given can be seen."""

    def extract_action(self, text):
        return ParsedAction(text)


UP = {"action": "up"}

FOUND = {
    "bare": ('{"action": "up"}', UP),
    "space around": (' \n{ "action" :\t"up" }\n ', UP),
    "fenced": ('```json\n{"action": "up"}\n```', UP),
    "fenced without a language": ('```\n{\n  "action": "up"\n}\n```', UP),
    "amid prose": ('I don\'t think so, "hm". {"action": "up"} It is "best"!', UP),
    "several": ('{"action": "down"} or rather {"action": "up"}', UP),
    "several in a list": ('[{"action": "down"}, {"action": "up"}]', UP),
    "the last is broken": ('{"action": "up"} {"action": "down"', UP),
    "the first is broken": ('{"action": down} {"action": "up"}', UP),
    "the first is not closed": ('{"plan": {"action": "up"}', UP),
    "the last has no key": ('{"action": "up"} {"note": "done"}', UP),
    "braces in prose": ('{x} {} {{ } {"action": "up"} } {', UP),
    "braces in a string": (
        '{"why": "} { {\\"action\\": 1}", "action": "up"}',
        {"why": '} { {"action": 1}', **UP},
    ),
    "escaped quotes": ('{"why": "\\"so\\"", "action": "up"}', {"why": '"so"', **UP}),
    "lines in a string": ('{"why": "a\nb", "action": "up"}', {"why": "a\nb", **UP}),
    "outer before inner": (
        '{"action": "up", "then": {"action": "down"}}',
        {**UP, "then": {"action": "down"}},
    ),
    "key in an inner object": ('{"reply": {"action": "up", "sure": true}}', {**UP, "sure": True}),
    "key in a list's object": ('{"steps": [{"action": "down"}, {"action": "up"}, 3]}', UP),
    "outermost of the inner": ('{"a": {"action": {"action": 1}}}', {"action": {"action": 1}}),
    "the key twice": ('{"action": "down", "action": "up"}', UP),
    "unicode": ('{"action": "früh \\u2192 🂡"}', {"action": "früh → 🂡"}),
    "half a character": ('{"action": "\\ud800"}', {"action": "\ud800"}),
    "an escaped key": ('{"\\u0061ction": "up"}', UP),
    "infinite": ('{"action": Infinity}', {"action": float("inf")}),
    "too large for a float": ('{"action": -1e999}', {"action": float("-inf")}),
    "an integer of 5,000 digits": ('{"action": "up", "n": ' + "9" * 5000 + "}", {**UP, "n": float("inf")}),
}

NOT_FOUND = [
    "",
    " ",
    "up",
    '"action": "up"',
    "{'action': 'up'}",
    '["action", "up"]',
    '{"Action": "up"}',
    '{"action": }',
    "{}",
    "null",
]


@pytest.mark.parametrize(("text", "found"), FOUND.values(), ids=FOUND)
def test_json_objects_are_found(text, found):
    """Each is a form that models reply in; one not seen is a turn wasted, the wrong one a wrong action."""
    assert last_json_object(text, "action") == found


@pytest.mark.parametrize("text", NOT_FOUND)
def test_where_no_object_has_the_key(text):
    """Something taken for JSON that is none would keep the pattern from being asked."""
    assert last_json_object(text, "action") is None


def test_without_a_key_it_is_the_last_outermost_object():
    """Taking the last opening brace would give an inner object."""
    assert last_json_object('{"a": 1} {"b": {"c": 2}} [3]') == {"b": {"c": 2}}
    assert last_json_object('{"a": 1} {}') == {}
    assert last_json_object("[3]") is None


def slow_last_json_object(text):
    """Every stretch of the text through `json.loads`: from the left the longest valid one, and on after
    it."""
    found, start = None, 0
    while start < len(text):
        for end in range(len(text), start, -1) if text[start] == "{" else ():
            try:
                having = slow_having(json.loads(text[start:end], strict=False))
            except ValueError:
                continue
            found, start = having or found, end - 1
            break
        start += 1
    return found


def slow_having(value):
    if isinstance(value, dict) and "action" in value:
        return value
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((found for item in reversed(inner) if (found := slow_having(item))), None)


def test_the_search_agrees_with_trying_every_stretch():
    """The objects skipped, and the openings that are not tried, must not hold an object that counts."""
    draw = random.Random(0)
    pieces = ['{"action":', '{"action":', '{"a":', "1}", "2}", "}", "}", "[", "]", ",", '"b":', '"', " ", "{"]
    texts = ["".join(draw.choices(pieces, k=draw.randint(1, 14))) for _ in range(3000)]
    found = [last_json_object(text, "action") for text in texts]
    assert found == [slow_last_json_object(text) for text in texts]
    assert sum(one is not None for one in found) > 50


MATCHES = {
    "whole": (r"up|down", "up, no: down", "down"),
    "first group": (r"go (\w+) (\w+)", "go up now", "up"),
    "named group": (r"(go|turn) (?P<action>\w+)", "turn down", "down"),
    "last match": (r"Action: (\w+)", "Action: up\nAction: down\n", "down"),
    "the last that says something": (r"Action:(?: (\w+))?", "Action: up\nAction:", "up"),
    "empty matches": (r"\w*", "up!", "up"),
    "none": (r"Action: (\w+)", "up", None),
    "empty reply": (r".*", "", None),
}


@pytest.mark.parametrize(("pattern", "text", "said"), MATCHES.values(), ids=MATCHES)
def test_what_a_pattern_says(pattern, text, said):
    """The wrong group or match would be another action than the model meant."""
    assert last_match(text, pattern) == said


def test_a_pattern_sees_the_end_of_a_long_text():
    """The answer follows the reasoning; and `^` must not match where the text was cut, in mid-line."""
    assert last_match("up " + "x" * (PATTERN_LENGTH - 5) + " up", "up") == "up"
    assert last_match("up" + "x" * PATTERN_LENGTH, "up") is None
    assert last_match("x" * 2 * PATTERN_LENGTH, "^x") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("up", "up"),
        ("", ""),
        (1, "1"),
        (-3, "-3"),
        (2.0, "2"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (10**30, "1" + "0" * 30),
    ],
)
def test_json_values_as_text(value, text):
    """2.0 must read as the action 2, and 0.5 must not be rounded."""
    assert value_text(value) == text


@pytest.mark.parametrize(
    "value", [None, True, False, [], ["up"], {}, UP, float("nan"), float("inf"), float("-inf")]
)
def test_json_values_that_say_no_text(value):
    """`true` is an int to Python and would be action 1; NaN would reach the environment as a number."""
    assert value_text(value) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" uP\n", 1),
        ("0", 0),
        ("1", 1),
        ("2", None),
        ("-1", None),
        ("1.0", None),
        ("", None),
        ("up down", None),
        ("²", None),
    ],
)
def test_names_and_numbers_of_actions(text, number):
    """A number outside the range must not count from the end, and half a name is no name."""
    assert action_number(text, ("Down", "Up")) == number


def test_names_that_are_numbers_are_names():
    """Of the actions ('1', '2') the reply 1 is the first, whose number is 0; and 0 is none of them."""
    assert [action_number(text, ("1", "2")) for text in "012"] == [None, 0, 1]
    assert action_number("1", ("1 up", "2 up")) is None


def test_names_that_differ_in_case_or_space_alone_are_told_apart():
    """NetHack's h and H are two actions; and a name with a space before it, as tokenizers like it, is read as
    itself."""
    assert [action_number(text, ("U0", "u0")) for text in ("U0", "u0", " u0\n", "1")] == [0, 1, 1, 1]
    assert [action_number(text, ("up", " up")) for text in ("up", " up", "UP ")] == [0, 1, 0]
    agent = type("Spaced", (Lift,), {"actions": (" down", " up", " ")})()
    assert [agent.parse(text).action for text in (" down", " up", "up", " ", '{"action": " up"}')] == [
        0,
        1,
        1,
        2,
        1,
    ]


READ = {
    "JSON name": ('{"action": " UP "}', 1),
    "JSON number": ('{"action": 0}', 0),
    "JSON whole float": ('{"action": 1.0}', 1),
    "JSON number in words": ('{"action": "1"}', 1),
    "fenced JSON after reasoning": ('Down is wet.\n```json\n{"why": "dry", "action": "up"}\n```', 1),
    "JSON before the pattern": ('{"action": "up"} Action: down', 1),
    "pattern name": ("Hm. ACTION: up.", 1),
    "pattern number": ("Action: 0", 0),
    "pattern where JSON names no action": ('{"action": "sideways"} Action: up', 1),
    "pattern where JSON lacks the key": ('{"move": "up"} Action: down', 0),
    "the whole text": (" down\n", 0),
}


@pytest.mark.parametrize(("text", "action"), READ.values(), ids=READ)
def test_replies_that_name_an_action(text, action):
    """Each form is one that the spec promises to read, in this order."""
    assert Signed().parse(text) == ParsedAction(action)


@pytest.mark.parametrize(
    "value", ["[]", '["up"]', "null", "true", "false", "{}", '{"name": "up"}', "2", "-1", "0.5", "NaN", '""']
)
def test_json_values_that_name_no_action(value):
    """Played as some action, they would be credited to words that mean nothing."""
    parsed = Lift().parse(f'{{"action": {value}}}')
    assert parsed.action is None
    assert not parsed.ok
    assert "JSON 'action' says" in parsed.reason


def test_the_reason_tells_what_was_found():
    """Whoever looks for the cause of failures must see that the reply was understood but for its word."""
    parsed = Signed().parse('{"action": "left"} Action: right')
    assert parsed.reason == (
        "the response's JSON 'action' says 'left', which names no action; the pattern's match says 'right', "
        "which names no "
        'action; \'{"action": "left"} Action: right\' is none of Down, Up'
    )


@pytest.mark.parametrize("text", ["", " ", "\n", "{}", "```"])
def test_an_empty_reply_is_a_reply(text):
    """A model that stops at once says nothing, and the episode goes on."""
    for agent in (Lift(), Signed(), BlackjackAgent(), CartPoleAgent()):
        parsed = agent.parse(text)
        assert not parsed.ok
        assert parsed.reason == agent.extract_action(text).reason
    assert Echo().parse(text) == ParsedAction(text)


def test_the_name_of_an_action_is_that_action():
    """Whatever part of it a pattern finds, which is for free text: column 1 was read as number 1."""
    names = ("column 1", "column 2", "column 3")
    members = {"system_prompt": "", "actions": names, "pattern": r"\d+", "format_observation": str}
    written = type("Columns", (TextAgent,), members)()
    general = GeneralAgent(actions=list(names), pattern=r"\d+")
    general.bind(SpacesEnv(Discrete(3), Discrete(3)))
    for agent in (written, general):
        assert [agent.parse(name).action for name in names] == [0, 1, 2]
        assert agent.parse("I take 1").action == 1


def test_an_agents_own_reading_is_asked_last():
    """An agent that only overrides `extract_action` sees the JSON's value, and the whole reply where there is
    none."""
    assert Dial().parse("0.5").action == 0.5
    assert Dial().parse('{"action": 0.25}').action == 0.25
    assert Dial().parse('{"action": "-3"}').action == -3.0
    assert Dial().parse('{"action": NaN}').reason.endswith("is no number")
    assert (
        type("Turned", (Dial,), {"pattern": r"turn (\S+)"})().parse('{"action": "left"} turn 2').action == 2.0
    )
    assert Echo().parse('I say {"action": "a rose"}.').action == "a rose"
    assert Echo().parse('I say {"action": ["a rose"]}.').action == 'I say {"action": ["a rose"]}.'


def test_an_agents_own_reading_returns_an_action_or_none():
    """As plain Python does; a `ParsedAction` is for those who say why not."""

    class Plain(Dial):
        pattern = r"turn (\S+)"

        def extract_action(self, text):
            return float(text) if text.replace(".", "").isdigit() else None

    assert Plain().parse("0.5") == ParsedAction(0.5)
    assert Plain().parse('{"action": 0}') == ParsedAction(0.0)
    assert Plain().parse("I turn 2") == ParsedAction(2.0)
    assert not Plain().parse("hm").ok
    assert Plain().parse("hm").reason == "extract_action found nothing in 'hm'"
    assert Plain().parse('{"action": "up"}').reason.startswith("the response's JSON 'action' says 'up'")


def test_an_agent_chooses_its_key_or_none():
    """Without effect, a reply in another form, or a poem with braces, could not be read as it is meant."""

    class Move(Lift):
        json_key = "move"

    class Plain(Echo):
        json_key = None

    assert Move().parse('{"action": "up", "move": "down"}').action == 0
    assert Plain().parse('{"action": "up"}').action == '{"action": "up"}'


def test_replies_are_parsed_in_play():
    """An environment fed by `extract_action` alone would take every JSON reply for rubbish."""
    agent = echo.CountingAgent()
    builder = PromptBuilder(tiny.tokenizer(), "Go.", 2048)
    runner = EnvRunner(gymnasium.make("Counting-v0"), EpisodePrompts(agent, builder, scores_candidates=False))
    runner.reset(3)
    reply = json.dumps({"action": agent.actions[1]})
    runner.step(Response(tuple(tiny.tokenizer().encode(reply)), (), True, reply))
    assert runner.parsed
    assert runner.action == 1
    runner.close()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(up", r"Wrong.pattern is '\(up': that is no regular expression, .*\)"),
        (3, r"Wrong.pattern is 3: .* string"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(pattern, message):
    """Otherwise the first reply, minutes later, is where it stops."""
    with pytest.raises(TypeError, match=message):
        type("Wrong", (Lift,), {"pattern": pattern})


HOSTILE = {
    "braces": "{" * 100_000,
    "brackets": "[" * 100_000,
    "quotes": '"' * 100_000,
    "objects": "{}" * 50_000,
    "half keys": '{"' * 50_000,
    "half objects": '{"":}' * 20_000,
    "nested and not closed": '{"a":' * 20_000,
    "nested to the limit, not closed": ('{"a":' * 900 + "x") * 22,
    "nested before a long list": '{"a":' * 900 + "[" + "1," * 47_000,
    "nested too deep, with lists": ('{"a":[' + "1," * 20) * 2170,
    "nested": '{"action":' * 9_000 + "1" + "}" * 9_000,
    "nested lists": '{"action":' + "[" * 40_000 + "]" * 40_000 + "}",
    "lines": "\n" * 80_000 + '{"":}' * 4_000,
    "digits": '{"action":' + "9" * 90_000 + "}",
    "spaces": "{ " * 50_000,
    "astral": ('{"":}' + "\U0001f600") * 17_000,
    "backslashes": '{"\\' * 33_000,
    "longer than is looked at": '{"a":' * 200_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_replies_cost_little(text):
    """Trying every brace to the end of the text takes seconds and more; they take a tenth of a second at
    most."""
    start = time.process_time()
    assert not Signed().parse(text).ok
    assert time.process_time() - start < 1.0


def test_json_is_found_behind_rubbish():
    """What makes a search give up must be more than a model writes: here a long reply full of braces."""
    reply = '{"action": "up"}'
    assert Lift().parse("{" * 100_000 + reply).action == 1
    assert Lift().parse('{"why": because} ' * 1000 + reply).action == 1
    assert Lift().parse("x" * 2 * JSON_LENGTH + reply).action == 1
    assert Lift().parse(r"\frac{1}{2} {\"a\"} {a: 1} {'b': 2} " * 2000 + reply).action == 1
    assert Lift().parse('{"why": "' + "because " * 10_000 + '", "action": "up"}').action == 1


def test_json_is_looked_for_at_the_end_of_a_long_text():
    """What a reply has left 100,000 characters behind is not its answer."""
    assert last_json_object('{"action": "up"}' + "x" * (JSON_LENGTH - 16), "action") == UP
    assert last_json_object('{"action": "up"}' + "x" * (JSON_LENGTH - 15), "action") is None


def test_a_search_that_gives_up_finds_nothing():
    """The last object of the part that was searched may be one that the model took back."""
    assert last_json_object('{"action": "down"}' + '{"":}' * 10_000 + '{"action": "up"}', "action") is None


def test_deeply_nested_json_is_read_or_not_but_raises_nothing():
    """Python's own reader raises `RecursionError` at about a thousand objects within each other."""
    for depth in (10, 500, 990, 1500, 5000, 15_000):
        nested = '{"a":' * depth + '{"action": "up"}' + "}" * depth
        assert Lift().parse(nested).ok or depth >= 990
        assert not Lift().parse('{"action":' + nested + "}").ok or depth >= 990


PIECES = [
    *'{{{}}}[]""":,\\`\n 0129-.eEaup\U0001f600é\ud800\0',
    *(
        '"action"',
        '{"action":',
        '"up"',
        "up",
        "```json\n",
        "Action: ",
        "NaN",
        "-Infinity",
        "1e999",
        "true",
        "null",
        '\\"',
        "\\u12",
    ),
]


def read_random_texts(count, seed):
    """How many of so many random texts name an action."""
    draw = random.Random(seed)
    agents, read = (Lift(), Signed(), Dial()), 0
    for number in range(count):
        parsed = agents[number % 3].parse("".join(draw.choices(PIECES, k=draw.randint(0, 30))))
        if parsed.ok:
            read += 1
            assert isinstance(parsed.action, float) if number % 3 == 2 else parsed.action in (0, 1)
        else:
            assert parsed.action is None
            assert parsed.reason
    return read


def test_random_texts_raise_nothing():
    """One reply in thousands that stops a run is a run lost overnight."""
    assert read_random_texts(20_000, seed=0) > 100


@pytest.mark.slow
def test_a_million_random_texts_raise_nothing():
    """The same for what comes up once in a million."""
    assert read_random_texts(1_000_000, seed=1) > 5_000
