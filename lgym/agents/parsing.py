"""Parsing of actions from free text: by the response's JSON, then the agent's pattern, then its
`extract_action`.

Every text has a result, an action or a failure with its reason, in bounded time. The one cost that cannot be
bounded here is that of a pattern which backtracks without end.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from reprlib import repr as short
from typing import Any

from lgym.types import ParsedAction

JSON_LENGTH = 100_000  # the characters, from the end of a text, that are searched for JSON

JSON_WORK = 1_000_000  # the characters that may be read in vain; a text that takes more holds no JSON

JSON_TRY = 500  # the least cost of one failed try, in characters: an error counts the lines before it

PATTERN_LENGTH = 10_000  # the characters, from the end of a text, that are searched for a pattern

_OPENING = re.compile(r'\{[ \t\n\r]*["}]')
_STARTS_WITH_A_NUMBER = re.compile(r"\s*[-+.]?\d")


def last_json_object(text: str, key: str | None = None) -> dict[str, Any] | None:
    """The last valid JSON object of a text, bare, fenced or amid prose; with `key`, the last that has it.

    Of nested objects it is the outermost (that has the key). The search covers the last `JSON_LENGTH`
    characters, and gives up, with `None`, after reading `JSON_WORK` of them in vain. NaN and Infinity count
    as valid.
    """
    text = text[-JSON_LENGTH:]
    completed: list[dict[str, Any]] = []  # in one try; an object after those inside it

    def complete(value: dict[str, Any]) -> dict[str, Any]:
        if key is None or key in value:
            completed.append(value)
        return value

    # Not strict: models break lines inside strings.
    decoder = json.JSONDecoder(object_hook=complete, parse_int=_parse_int, strict=False)
    last, start, work = None, 0, 0
    while work < JSON_WORK and (opening := _OPENING.search(text, start)):
        start = opening.start()
        completed.clear()
        try:
            _, start = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError) as error:
            read = error.pos - start if isinstance(error, json.JSONDecodeError) else len(text) - start
            work += max(read, JSON_TRY)
            start += 1
        else:
            last = completed[-1] if completed else last
    return last if work < JSON_WORK else None  # the last of a part need not be the last of the whole


def _parse_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= 100 else float(digits)  # Python refuses thousands of digits


def pattern_fault(pattern: Any) -> str | None:
    """The reason why this is no regular expression to search with; `None` where it is one."""
    if not isinstance(pattern, str):
        return "make it a regular expression in a string"
    try:
        re.compile(pattern)
    except re.error as error:
        return f"that is no regular expression, {error}"
    return None


def last_match(text: str, pattern: str) -> str | None:
    """The last match of a regular expression in the last `PATTERN_LENGTH` characters.

    It is the group named action, else the first group, else the whole. Matches in which that is empty or took
    no part do not count.
    """
    compiled = re.compile(pattern)
    group: str | int = "action" if "action" in compiled.groupindex else min(compiled.groups, 1)
    matches = compiled.finditer(text, max(0, len(text) - PATTERN_LENGTH))
    return next((found for match in reversed(list(matches)) if (found := match[group])), None)


def value_text(value: Any) -> str | None:
    """A JSON string or finite number as the text that says the same (2.0 as '2'), `None` for anything
    else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return str(int(value) if value == int(value) else value)


def named_action(text: str, actions: Sequence[str]) -> int | None:
    """The number of the action that a text names, ignoring case and outer space.

    Of names that differ in these alone, such as 'h' and 'H', it is the one that is nearest to the text.
    """
    for normalize in (str, str.strip, lambda name: name.strip().casefold()):
        names = list(map(normalize, actions))
        if normalize(text) in names:
            return names.index(normalize(text))
    return None


def action_number(text: str, actions: Sequence[str]) -> int | None:
    """The number of the action that a text names, see `named_action`, or the number that the text is itself.

    Where a name starts with a number, as in '1' or '2 up', only names count: a bare 1 could mean either.
    """
    number = named_action(text, actions)
    if number is not None or any(map(_STARTS_WITH_A_NUMBER.match, actions)):
        return number
    return next((number for number in range(len(actions)) if str(number) == text.strip()), None)


def parsed_action(action: Any, text: str) -> ParsedAction:
    """The result of an `extract_action` as data: it may return an action, `None` for none, or a
    `ParsedAction`."""
    if action is None:
        return ParsedAction.failure(f"extract_action found nothing in {short(text)}")
    return action if isinstance(action, ParsedAction) else ParsedAction(action)


def read_action(
    text: str,
    extract_action: Callable[[str], Any],
    *,
    actions: Sequence[str] = (),
    json_key: str | None = None,
    pattern: str | None = None,
) -> ParsedAction:
    """Parse the action that a text names. One that is the very name of an action is read by `extract_action`;
    another by the first of these that finds one:

    1. the value of `json_key` in `last_json_object`,
    2. `last_match` of the pattern,
    3. `extract_action` of the whole text.

    A value from 1 or 2 is read by `action_number` where there are `actions`, and else by `extract_action`. In
    a failure, the reason tells what 1 and 2 found.
    """
    if text in actions and (parsed := parsed_action(extract_action(text), text)).ok:
        return parsed
    failures = ""
    for source, value in _values(text, json_key, pattern):
        named = value_text(value)
        if named is not None and actions:
            number = action_number(named, actions)
            if number is not None:
                return ParsedAction(number)
        elif named is not None and (parsed := parsed_action(extract_action(named), named)).ok:
            return parsed
        failures += f"{source} says {short(value)}, which names no action; "
    parsed = parsed_action(extract_action(text), text)
    return parsed if parsed.ok or not failures else replace(parsed, reason=failures + parsed.reason)


def _values(text: str, json_key: str | None, pattern: str | None) -> Iterator[tuple[str, Any]]:
    if json_key is not None and (found := last_json_object(text, json_key)) is not None:
        yield f"the response's JSON {json_key!r}", found[json_key]
    if pattern is not None and (match := last_match(text, pattern)) is not None:
        yield "the pattern's match", match
