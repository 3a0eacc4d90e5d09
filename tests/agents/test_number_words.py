"""Numbers rounded to steps, and in words."""

from __future__ import annotations

import math

import pytest

from lgym.agents.number_words import default_words, number_limits, number_text, number_words, sector_words


@pytest.mark.parametrize(
    ("decimals", "step", "number", "text"),
    [
        (None, None, 3.7, "3"),
        (2, None, 3.14159, "3.14"),
        (None, 0.05, 0.12, "0.10"),
        (None, 0.05, 0.13, "0.15"),
        (None, 20.0, 31.0, "40"),
        (None, 1e-3, 0.0126, "0.013"),
        (3, 0.2, 0.33, "0.400"),
        (-1, None, 15.1, "20"),
        (-2, None, -30.0, "0"),
        (-1, 50.0, 76.0, "100"),
        (None, 0.5, math.nan, "nan"),
    ],
)
def test_rounding(decimals, step, number, text):
    assert number_text(decimals, step)(number) == text


@pytest.mark.parametrize(
    ("name", "first", "middle", "last"),
    [
        ("cart position", "far left", "middle", "far right"),
        ("cart velocity", "very negative", "near zero", "very positive"),
        ("x velocity", "fast left", "still", "fast right"),
        ("Pole Angular Velocity", "fast left", "still", "fast right"),
        ("y", "far down", "middle", "far up"),
        ("vertical speed", "fast down", "still", "fast up"),
        ("xylophone", "very negative", "near zero", "very positive"),
    ],
)
def test_default_words_follow_the_name(name, first, middle, last):
    words = default_words(name)
    assert (words[0], words[2], words[4]) == (first, middle, last)


@pytest.mark.parametrize(
    ("count", "low", "high", "scale", "limits"),
    [
        (5, -math.inf, math.inf, 9.0, [-9, -3, 3, 9]),
        (4, -math.inf, math.inf, 9.0, [-9, 0, 9]),
        (2, -1, 1, None, [0]),
        (3, -1, 2, None, [-1, 1]),  # half of the larger bound
        (4, 0, 8, None, [2, 4, 6]),
        (2, -4, 0, None, [-2]),
        (2, 0, 8, 3.0, [0]),
        (3, 0, math.inf, None, None),
        (3, -3.4e38, 3.4e38, None, None),  # as many environments write what has no bounds
    ],
)
def test_limits(count, low, high, scale, limits):
    found = number_limits(count, low, high, scale)
    assert found == (None if limits is None else pytest.approx(limits))


def test_every_word_is_said_between_its_limits():
    """In order, each from its limit on."""
    say = number_words("abcde", [-9, -3, 3, 9])
    assert [say(number) for number in (-10, -9, -3, 0, 3, 9, math.inf)] == list("abccdee")


def test_sectors_are_nearest_directions():
    """Each is centered at its direction, the first at 0."""
    say = sector_words(["east", "north", "west", "south"])
    angles = {44: "east", 46: "north", 180: "west", -134: "south", -46: "south", -44: "east"}
    assert {a: say(math.cos(math.radians(a)), math.sin(math.radians(a))) for a in angles} == angles
