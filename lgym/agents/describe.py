"""Observations of any space in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from lgym.types import ConfigError

MAX_NUMBERS = 256
"""The numbers of one box that are still read out."""

Read: TypeAlias = Callable[[Any], list[str]]
"""An observation's parts in words."""


class ObservationWords:
    """The wording of one observation space.

    A number reads 'position: 0.25 m'. Its label is its name, behind the names of what it lies in: 'robot x'. Names are the
    keys of a `Dict`, those that were given, or else positions from 0. What is one number by itself needs no label.
    """

    def __init__(
        self,
        space: gymnasium.Space,
        names: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        decimals: int | Mapping[str, int] | None = None,
        units: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            space: of the observations.
            names: of the parts of a vector or `Tuple`; of several, by the label of each.
            decimals: of numbers that are not whole, or by label; by default as many as tell a hundredth of the range.
            units: by label.

        Raises:
            ValueError: for a space that has no words here, and for settings of parts that are not there.
        """
        self._names = dict(names) if isinstance(names, Mapping) else {} if names is None else {"": names}
        self._units = dict(units or {})
        self._decimals = decimals
        self._met: dict[str, set[str]] = {"names": set(), "decimals": set(), "units": set()}
        self._read = self._reader(space, "")
        self._require_met("names", self._names)
        self._require_met("units", self._units)
        self._require_met("decimals", decimals if isinstance(decimals, Mapping) else ())

    def __call__(self, observation: Any) -> str:
        parts = self._read(observation)
        return ("\n" if any("\n" in part for part in parts) else ", ").join(parts)

    def _reader(self, space: gymnasium.Space, label: str) -> Read:
        if isinstance(space, Dict):
            return _each([(key, self._reader(part, _join(label, str(key)))) for key, part in space.spaces.items()])
        if isinstance(space, Tuple):
            names = self._names_of(label, len(space.spaces))
            readers = [self._reader(part, _join(label, name)) for part, name in zip(space.spaces, names, strict=True)]
            return _each(list(enumerate(readers)))
        if isinstance(space, Text):
            return lambda text: [_labelled(label, str(text))]
        if isinstance(space, Discrete):
            return self._numbers(label, (), [None])
        if isinstance(space, MultiBinary):
            return self._numbers(label, space.shape, [None] * math.prod(space.shape), flags=True)
        if isinstance(space, MultiDiscrete):
            return self._numbers(label, space.shape, [None] * math.prod(space.shape))
        if isinstance(space, Box):
            return self._numbers(label, space.shape, box_decimals(space))
        raise ConfigError(
            f"{_called(label)} is {space}, which the general agent cannot describe. Turn it into one that it can with a "
            "wrapper (data.wrappers), or write an agent: format_observation is one method."
        )

    def _numbers(self, label: str, shape: tuple[int, ...], decimals: Sequence[int | None], flags: bool = False) -> Read:
        """The words of an array; `decimals` has those of each of its numbers, `None` for whole ones."""
        size = math.prod(shape)
        if len(shape) > 2 or size > MAX_NUMBERS:
            raise ConfigError(
                f"{_called(label)} is an array of {size:,} numbers, shape {shape}; up to {MAX_NUMBERS} in one or two "
                "dimensions are read out. Make it smaller with a wrapper (data.wrappers, such as "
                "gymnasium.wrappers.ResizeObservation or TransformObservation), or write an agent that says what matters."
            )
        if len(shape) == 2:
            places = self._places(label, decimals[0])
            return lambda array: [_labelled(label, _rows(array, places))]
        if size == 1 and (not shape or label not in self._names):
            names = self._names_of(label, 1) if label in self._names else [""]
        else:
            names = self._names_of(label, size)
        labels = [_join(label, name) for name in names]
        says = [self._number(own, places, flags) for own, places in zip(labels, decimals, strict=True)]
        return lambda array: [say(number) for say, number in zip(says, np.ravel(array).tolist(), strict=True)]

    def _number(self, label: str, decimals: int | None, flag: bool) -> Callable[[float], str]:
        if flag:
            return lambda number: _labelled(label, "yes" if number else "no")
        places = self._places(label, decimals)
        self._met["units"].add(label)
        unit = f" {self._units[label]}" if label in self._units else ""
        return lambda number: _labelled(label, f"{rounded(number, places)}{unit}")

    def _places(self, label: str, decimals: int | None) -> int | None:
        """How many decimals a number has; whole numbers have none, whatever is set."""
        if decimals is None:
            return None
        self._met["decimals"].add(label)
        given = self._decimals.get(label) if isinstance(self._decimals, Mapping) else self._decimals
        return decimals if given is None else given

    def _names_of(self, label: str, count: int) -> Sequence[str]:
        self._met["names"].add(label)
        names = self._names.get(label)
        if names is None:
            return [str(number) for number in range(count)]
        if len(names) != count or len(set(names)) < count:
            raise ConfigError(f"names has {list(names)} for {_called(label)}, which needs {count} different names.")
        return names

    def _require_met(self, setting: str, labels: Iterable[str]) -> None:
        unknown = sorted(set(labels) - self._met[setting])
        if unknown:
            there = ", ".join(map(repr, sorted(self._met[setting]))) or "none"
            raise ConfigError(f"{setting} has {unknown[0]!r}; the parts of the observation that have {setting} are: {there}.")


def _each(readers: Sequence[tuple[Any, Read]]) -> Read:
    return lambda observation: [text for key, read in readers for text in read(observation[key])]


def box_decimals(space: Box) -> list[int | None]:
    """For each number: none for whole ones, two where it has no bounds (or any beyond a million), else a hundredth of its
    range."""
    if not np.issubdtype(space.dtype, np.floating):
        return [None] * math.prod(space.shape)
    spans = np.ravel(space.high).astype(float) - np.ravel(space.low).astype(float)
    return [max(0, 2 - math.floor(math.log10(span))) if 0 < span <= 1e6 else 2 for span in spans.tolist()]


def _rows(array: Any, places: int | None) -> str:
    return "\n".join(" ".join(rounded(number, places) for number in row) for row in np.asarray(array).tolist())


def rounded(number: float, places: int | None) -> str:
    """A number as text, without decimals if `places` is `None`, and never as -0."""
    if places is None:
        return str(int(number))
    text = f"{number:.{places}f}"
    return text.lstrip("-") if float(text) == 0 else text


def _join(label: str, name: str) -> str:
    return f"{label} {name}".strip()


def _labelled(label: str, text: str) -> str:
    return f"{label}:{chr(10) if chr(10) in text else ' '}{text}" if label else text


def _called(label: str) -> str:
    return f"The observation's part {label!r}" if label else "The observation"
