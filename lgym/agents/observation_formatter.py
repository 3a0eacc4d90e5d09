"""Observations of any space as text."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from lgym.agents.number_words import (
    SECTORS,
    UNBOUNDED,
    default_words,
    number_limits,
    number_text,
    number_words,
    require_words,
    sector_words,
)
from lgym.agents.observation_settings import ObservationSettings, Selection
from lgym.types import ConfigError

MAX_NUMBERS = 256  # the numbers of one box that are still read out

Reader: TypeAlias = Callable[[Any], str]  # the text of an observation or of a part of it, without its label
Getter: TypeAlias = Callable[[Any], Any]  # a part of an observation

Arrays: TypeAlias = Box | Discrete | MultiBinary | MultiDiscrete


class _Part(NamedTuple):
    label: str
    text: Reader  # of the whole observation
    number: Getter | None = None  # where it is a number that could be rounded


class ObservationFormatter:
    """The text of the observations of one space.

    A number reads 'position: 0.25 m'. Its label is its name, behind the names of what it lies in: 'robot x'.
    Names are the keys of a `Dict`, those that were given, or else positions from 0. A single number needs no
    label. In words, two numbers named 'cos' and 'sin' of the same are one angle.

    Args:
        space: of the observations.
        settings: names, and the form of numbers.
        readers: texts of whole parts, by label; '' is the observation.

    Attributes:
        space: of the observations.
        settings: names, and the form of numbers.
        readers: texts of whole parts, by label.

    Raises:
        ValueError: for a space that has no text here, and for settings of parts that are not there.
    """

    def __init__(
        self,
        space: gymnasium.Space[Any],
        settings: ObservationSettings | None = None,
        readers: Mapping[str, Reader] | None = None,
    ) -> None:
        self.space = space
        self.settings = settings = settings or ObservationSettings()
        self.readers = readers or {}
        self._selection = Selection(settings)
        self._settings = {
            name: settings.by_label(name)
            for name in ("names", "units", "decimals", "resolution", "words", "scale")
        }
        parts = list(self._space_parts(space, "", lambda observation: observation))
        parts = [part for part in parts if self._selection.shows(part.label)]
        self._selection.require_known()
        for setting in self._settings.values():
            setting.require_known()
        if not parts:
            raise ConfigError("Nothing of the observation is shown: leave something in.")
        self._parts = sorted(parts, key=lambda part: self._selection.rank(part.label))

    def __call__(self, observation: Any) -> str:
        texts = [part.text(observation) for part in self._parts]
        if any("\n" in text for text in texts):
            return "\n".join(texts)
        return "".join(
            text if number == 0 else f"{' ' if texts[number - 1].endswith('.') else ', '}{text}"
            for number, text in enumerate(texts)
        )

    def numbers(self, observation: Any) -> dict[str, float]:
        """The numbers that are shown and are not whole, by label."""
        return {
            part.label: float(part.number(observation)) for part in self._parts if part.number is not None
        }

    def _space_parts(self, space: gymnasium.Space[Any], label: str, get: Getter) -> Iterator[_Part]:
        if not self._selection.shows(label, whole=False):
            return
        if (reader := self.readers.get(label)) is not None:
            yield _Part(label, lambda observation: reader(get(observation)))
        elif isinstance(space, Dict):
            keys = {str(key): key for key in space}
            yield from self._inner_parts(label, {name: (key, space[key]) for name, key in keys.items()}, get)
        elif isinstance(space, Tuple):
            names = self._names(label, len(space))
            inner = {name: (index, space[index]) for index, name in enumerate(names)}
            yield from self._inner_parts(label, inner, get)
        elif space.dtype is not None and space.dtype.kind == "U":  # Gymnasium's Text, MiniGrid's missions
            yield _Part(label, lambda observation: _labeled(label, str(get(observation))))
        elif isinstance(space, Arrays):
            yield from self._array_parts(space, label, get)
        else:
            raise ConfigError(
                f"{_part(label)} is {space}, which the general agent cannot describe. Turn it into one that "
                "it can with a wrapper (data.wrappers), leave it out (drop), or write an agent: "
                "format_observation is one method."
            )

    def _inner_parts(
        self, label: str, parts: Mapping[str, tuple[Any, gymnasium.Space[Any]]], get: Getter
    ) -> Iterator[_Part]:
        for name, (key, space) in parts.items():
            yield from self._space_parts(space, self._inner(label, name), partial(_item, get, key))

    def _array_parts(self, space: Arrays, label: str, get: Getter) -> Iterator[_Part]:
        shape = tuple(space.shape or ())
        size = math.prod(shape)
        if len(shape) > 2 or size > MAX_NUMBERS:
            raise _unreadable(label, size, shape)
        if len(shape) == 2:
            texts = [self._number_text(space, label, index) for index in range(size)]
            yield _Part(label, lambda observation: _labeled(label, _format_rows(get(observation), texts)))
        elif size == 1 and label not in self._settings["names"]:
            yield from self._vector_parts(space, {label: 0}, {}, get)
        else:
            names = self._names(label, size)
            indices = {self._inner(label, name): index for index, name in enumerate(names)}
            angles = {
                self._inner(label, name[4:]): (index, names.index(f"sin {name[4:]}"))
                for index, name in enumerate(names)
                if name.startswith("cos ") and f"sin {name[4:]}" in names
            }
            yield from self._vector_parts(space, indices, angles, get)

    def _vector_parts(
        self, space: Arrays, indices: Mapping[str, int], angles: Mapping[str, tuple[int, int]], get: Getter
    ) -> Iterator[_Part]:
        """The parts of a vector: those of its angles that are said in words, and every other number."""
        said = {label: pair for label, pair in angles.items() if self._settings["words"].get(label)}
        starts = {pair[0]: label for label, pair in said.items()}
        paired = {index for pair in said.values() for index in pair}
        for label, index in indices.items():
            if index in starts:
                part = self._angle(starts[index], said[starts[index]], get)
            elif index not in paired:
                part = self._number(space, label, index, get)
            else:
                continue
            yield part

    def _angle(self, label: str, pair: tuple[int, int], get: Getter) -> _Part:
        words = self._settings["words"].get(label)
        say = sector_words(SECTORS if words is True else require_words(label, words))

        def text(observation: Any) -> str:
            array = np.ravel(get(observation))
            return _labeled(label, say(float(array[pair[0]]), float(array[pair[1]])))

        return _Part(label, text)

    def _number(self, space: Arrays, label: str, index: int, get: Getter) -> _Part:
        if isinstance(space, MultiBinary):
            return _Part(label, lambda flags: _labeled(label, "yes" if np.ravel(get(flags))[index] else "no"))

        def number(observation: Any) -> Any:
            return np.ravel(get(observation))[index].item()

        is_float = isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)
        if isinstance(space, Box) and is_float and (words := self._settings["words"].get(label)):
            say = self._words(space, label, index, words)
            return _Part(label, lambda observation: _labeled(label, say(number(observation))))
        text = self._number_text(space, label, index)
        unit = self._settings["units"].get(label, "")
        return _Part(
            label,
            lambda observation: _labeled(label, f"{text(number(observation))} {unit}".rstrip()),
            number if is_float else None,
        )

    def _words(self, space: Box, label: str, index: int, words: Any) -> Reader:
        words = default_words(label) if words is True else require_words(label, words)
        low, high = float(np.ravel(space.low)[index]), float(np.ravel(space.high)[index])
        limits = number_limits(len(words), low, high, self._settings["scale"].get(label))
        if limits is None:
            raise ConfigError(
                f"{_part(label)} has no bounds within a million, so that nothing says where words such as "
                f"{words[0]!r} begin. Set its scale, such as scale: {{{label or 'label'}: 1.0}}."
            )
        return number_words(words, limits)

    def _number_text(self, space: Arrays, label: str, index: int) -> Callable[[float], str]:
        if not isinstance(space, Box):
            return number_text(None, None)
        step = self._settings["resolution"].get(label)
        default = box_decimals(space)[index]
        if default is None:  # whole numbers have no decimals, whatever is set
            return number_text(None if step is None else 0, step)
        return number_text(self._settings["decimals"].get(label, default if step is None else None), step)

    def _inner(self, label: str, name: str) -> str:
        inner = f"{label} {name}".strip()
        self._selection.put(inner, inside=label)
        return inner

    def _names(self, label: str, count: int) -> Sequence[str]:
        names: Sequence[str] = self._settings["names"].get(label, [str(number) for number in range(count)])
        if len(names) != count or len(set(names)) < count:
            raise ConfigError(
                f"names has {list(names)} for {_part(label)}, which needs {count} different names."
            )
        return names


def box_decimals(space: Box) -> list[int | None]:
    """The decimals of each number of a box.

    None for whole numbers, two where a number has no bounds (or any beyond a million), else a hundredth of
    its range.
    """
    if not np.issubdtype(space.dtype, np.floating):
        return [None] * math.prod(space.shape)
    spans = np.ravel(space.high).astype(float) - np.ravel(space.low).astype(float)
    return [
        max(0, 2 - math.floor(math.log10(span))) if 0 < span <= UNBOUNDED else 2 for span in spans.tolist()
    ]


def _item(get: Getter, key: Any, observation: Any) -> Any:
    return get(observation)[key]


def _format_rows(array: Any, texts: Sequence[Callable[[float], str]]) -> str:
    """Rows of numbers, each by the text of its place."""
    rows, text = np.asarray(array).tolist(), iter(texts)
    return "\n".join(" ".join(next(text)(number) for number in row) for row in rows)


def _labeled(label: str, text: str) -> str:
    return f"{label}:{chr(10) if chr(10) in text else ' '}{text}" if label else text


def _part(label: str) -> str:
    return f"The observation's part {label!r}" if label else "The observation"


def _unreadable(label: str, size: int, shape: tuple[int, ...]) -> ConfigError:
    remedy = (
        "Put it in a row, data.wrappers: [{class_path: gymnasium.wrappers.FlattenObservation}]."
        if size <= MAX_NUMBERS
        else "A language model reads no pictures. Take the numbers behind them where the environment offers "
        "them (of Atari, data.env_kwargs: {obs_type: ram}), make it smaller with a wrapper (data.wrappers), "
        "leave it out (drop), or write an agent that says what matters: format_observation is one method."
    )
    return ConfigError(
        f"{_part(label)} is an array of {size:,} numbers, shape {shape}; up to {MAX_NUMBERS} in one or two "
        f"dimensions are read out. {remedy}"
    )
