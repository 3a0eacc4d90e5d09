"""How an action is read from free text: the reply's JSON first, then the agent's pattern, then its own `extract_action`.

Every text has an answer, an action or a failure with its reason, in bounded time. The one cost that cannot be bounded
here is that of a pattern which backtracks without end.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from reprlib import repr as short
from typing import Any

from lgym.types import ParsedAction

JSON_LENGTH = 100_000
"""The characters, from the end of a text, in which JSON is looked for."""

JSON_WORK = 1_000_000
"""The characters that may be read in vain looking for it. A text that takes more holds no JSON."""

JSON_TRY = 500
"""What one try in vain counts at least, in characters: an error counts the lines before it."""

PATTERN_LENGTH = 10_000
"""The characters, from the end of a text, in which a pattern is looked for."""

_OPENING = re.compile(r'\{[ \t\n\r]*["}]')
_STARTS_WITH_A_NUMBER = re.compile(r"\s*[-+.]?\d")


def _integer(digits: str) -> int | float:
    return (
        int(digits) if len(digits) <= 100 else float(digits)
    )  # Python refuses to read integers of thousands of digits


# Models break lines inside strings, which `strict` would refuse.
_DECODER = json.JSONDecoder(parse_int=_integer, strict=False)


def last_json_object(text: str, key: str | None = None) -> dict[str, Any] | None:
    """The last valid JSON object of a text, bare, fenced or amid prose; with `key`, the last that has it.

    Of objects within each other it is the outermost (that has the key). Looks at the last `JSON_LENGTH` characters, and
    gives up, with `None`, after reading `JSON_WORK` of them in vain. NaN and Infinity count as valid.
    """
    text = text[-JSON_LENGTH:]
    found, start, work = None, 0, 0
    while work < JSON_WORK and (opening := _OPENING.search(text, start)):
        start = opening.start()
        try:
            outermost, end = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError as error:
            work += max(error.pos - start, JSON_TRY)
            start += 1
        except RecursionError:
            work += len(text) - start
            start += 1
        else:
            start = end
            having = outermost if key is None else _last_having(outermost, key)
            found = found if having is None else having
    return found if work < JSON_WORK else None  # the last of a part need not be the last of the whole


def _last_having(value: Any, key: str) -> dict[str, Any] | None:
    stack = [value]  # not a recursion: objects may be nested almost as deep as Python's stack
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if key in value:
                return value
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return None


def pattern_fault(pattern: Any) -> str | None:
    """Why this is no regular expression to read with; `None` where it is one."""
    if not isinstance(pattern, str):
        return "make it a regular expression in a string"
    try:
        re.compile(pattern)
    except re.error as error:
        return f"that is no regular expression, {error}"
    return None


def last_match(text: str, pattern: str) -> str | None:
    """What a regular expression says of the last `PATTERN_LENGTH` characters: of its last match the group named action,
    else the first group, else the whole. Matches in which that is empty or took no part do not count."""
    compiled = re.compile(pattern)
    group: str | int = "action" if "action" in compiled.groupindex else min(compiled.groups, 1)
    matches = compiled.finditer(text, max(0, len(text) - PATTERN_LENGTH))
    return next((said for match in reversed(list(matches)) if (said := match[group])), None)


def value_text(value: Any) -> str | None:
    """A JSON string or finite number as the text that says the same (2.0 as '2'), `None` for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(int(value) if value == int(value) else value)


def named_action(text: str, actions: Sequence[str]) -> int | None:
    """The number of the action that a text is the name of, whatever the case and the space around it.

    Of names that differ in these alone, such as 'h' and 'H', it is the one that is nearest to the text.
    """
    for form in (str, str.strip, _plain):
        names = [form(name) for name in actions]
        if form(text) in names:
            return names.index(form(text))
    return None


def _plain(text: str) -> str:
    return text.strip().casefold()


def action_number(text: str, actions: Sequence[str]) -> int | None:
    """As `named_action`, or the number that a text is itself.

    Where a name starts with a number, as in '1' or '2 up', only names count: a bare 1 could mean either.
    """
    number = named_action(text, actions)
    if number is not None or any(map(_STARTS_WITH_A_NUMBER.match, actions)):
        return number
    numbers = [str(number) for number in range(len(actions))]
    return numbers.index(text.strip()) if text.strip() in numbers else None


def read_action(
    text: str,
    extract_action: Callable[[str], ParsedAction],
    *,
    actions: Sequence[str] = (),
    json_key: str | None = None,
    pattern: str | None = None,
) -> ParsedAction:
    """The action that a text names, by the first of these that finds one:

    1. the value of `json_key` in `last_json_object`,
    2. `last_match` of the pattern,
    3. `extract_action` of the whole text.

    A value from 1 or 2 is read as `action_number` where there are `actions`, and else by `extract_action`. In a failure,
    the reason tells what 1 and 2 found.
    """
    vain = []
    for source, value in _values(text, json_key, pattern):
        said = value_text(value)
        if said is not None and actions:
            number = action_number(said, actions)
            if number is not None:
                return ParsedAction(number)
        elif said is not None and (parsed := extract_action(said)).ok:
            return parsed
        vain.append(f"{source} says {short(value)}, which names no action; ")
    parsed = extract_action(text)
    return parsed if parsed.ok or not vain else replace(parsed, reason="".join(vain) + parsed.reason)


def _values(text: str, json_key: str | None, pattern: str | None) -> Iterator[tuple[str, Any]]:
    if json_key is not None and (found := last_json_object(text, json_key)) is not None:
        yield f"the reply's JSON {json_key!r}", found[json_key]
    if pattern is not None and (said := last_match(text, pattern)) is not None:
        yield "the pattern's match", said
