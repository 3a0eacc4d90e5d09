"""Numbers as text: rounded to a step, or in words for their sign and size."""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from lgym.types import ConfigError

SECTORS = tuple(f"{degrees} degrees" for degrees in (0, 45, 90, 135, 180, -135, -90, -45))

UNBOUNDED = 1e6  # a range beyond it bounds nothing that is played

FINER = 3.0  # the ratio of one size to the next smaller one

_DIRECTIONS = (
    (re.compile(r"\b(y|vertical|height|altitude)\b"), ("down", "up")),
    (re.compile(r"\b(x|horizontal|position|angle|angular|tilt)\b"), ("left", "right")),
)
_SPEED = re.compile(r"\b(velocity|speed)\b")


def number_text(decimals: int | None, step: float | None) -> Callable[[float], str]:
    """A function that shows a number: rounded to a multiple of `step`, with so many decimals.

    Negative decimals are tens, hundreds and so on. Without decimals, those of the step are shown.
    """
    if decimals is not None and decimals < 0:
        step, decimals = max(step or 0.0, 10.0**-decimals), 0
    if step is None:
        return lambda number: format_number(number, decimals)
    places = max(0, -int(Decimal(repr(step)).normalize().as_tuple().exponent))
    shown = places if decimals is None else decimals
    return lambda number: format_number(
        round(number / step) * step if math.isfinite(number) else number, shown
    )


def format_number(number: float, decimals: int | None) -> str:
    """A number as text, without decimals if `decimals` is `None`, and never as -0."""
    if decimals is None:
        return str(int(number))
    text = f"{number:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def default_words(name: str) -> tuple[str, ...]:
    """Five words from the most negative number to the most positive one, with the direction that the name of
    the number has: left and right, down and up, or else negative and positive."""
    name = name.casefold()
    signs = next((signs for pattern, signs in _DIRECTIONS if pattern.search(name)), ("negative", "positive"))
    large, none = ("fast", "still") if _SPEED.search(name) else ("far", "middle")
    if signs == ("negative", "positive"):
        large, none = "very", "near zero"
    return f"{large} {signs[0]}", signs[0], none, signs[1], f"{large} {signs[1]}"


def number_limits(count: int, low: float, high: float, scale: float | None) -> list[float] | None:
    """The numbers where one of `count` words ends and the next begins; `None` where there is no scale, nor a
    range up to `UNBOUNDED`.

    Around zero each size begins at `FINER` times the one before, the last at the scale, by default half of
    the larger bound. Numbers of one sign, without a scale, are divided evenly between their bounds.
    """
    if scale is None:
        if not high - low <= UNBOUNDED:
            return None
        if low >= 0 or high <= 0:
            return [low + (high - low) * number / count for number in range(1, count)]
        scale = max(-low, high) / 2
    sizes = [scale / FINER**number for number in range((count - 1) // 2)]
    middle = [] if count % 2 else [0.0]
    return [*(-size for size in sizes), *middle, *reversed(sizes)]


def number_words(words: Sequence[str], limits: Sequence[float]) -> Callable[[float], str]:
    """A function that says a number by the one of the words, smallest first, between whose limits it lies."""
    return lambda number: words[bisect_right(limits, number)]


def sector_words(words: Sequence[str]) -> Callable[[float, float], str]:
    """A function that says an angle, given by its cosine and sine, by the nearest of so many directions,
    growing from 0."""
    turn = len(words) / math.tau
    return lambda cos, sin: words[round(math.atan2(sin, cos) * turn) % len(words)]


def require_words(label: str, words: Any) -> tuple[str, ...]:
    """The words of a list that was given. Raises `ValueError` if it is none of at least two texts."""
    is_list = isinstance(words, Sequence) and not isinstance(words, str)
    if is_list and len(words) > 1 and all(isinstance(word, str) for word in words):
        return tuple(words)
    raise ConfigError(
        f"words has {words!r} for {label!r}: give true, or at least two words, from that for the smallest "
        "numbers to that for the largest, such as [far left, left, middle, right, far right]."
    )
