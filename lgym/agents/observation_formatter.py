"""Observations of any space as text."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from lgym.types import ConfigError

MAX_NUMBERS = 256  # the numbers of one box that are still read out

Format: TypeAlias = Callable[[Any], list[str]]  # the parts of an observation as texts


class ObservationFormatter:
    """The text of the observations of one space.

    A number reads 'position: 0.25 m'. Its label is its name, behind the names of what it lies in: 'robot x'.
    Names are the keys of a `Dict`, those that were given, or else positions from 0. A single number needs no
    label.

    Args:
        space: of the observations.
        names: of the parts of a vector or `Tuple`; of several, by the label of each.
        decimals: of numbers that are not whole, or by label; by default a hundredth of the range.
        units: by label.

    Raises:
        ValueError: for a space that has no text here, and for settings of parts that are not there.
    """

    def __init__(
        self,
        space: gymnasium.Space[Any],
        names: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        decimals: int | Mapping[str, int] | None = None,
        units: Mapping[str, str] | None = None,
    ) -> None:
        self._default_decimals = None if isinstance(decimals, Mapping) else decimals
        self._settings: dict[str, Mapping[str, Any]] = {
            "names": names if isinstance(names, Mapping) else {} if names is None else {"": names},
            "units": units or {},
            "decimals": decimals if isinstance(decimals, Mapping) else {},
        }
        self._labels: dict[str, set[str]] = {setting: set() for setting in self._settings}
        self._format = self._formatter(space, "")
        for setting, values in self._settings.items():
            if unknown := sorted(set(values) - self._labels[setting]):
                labels = ", ".join(map(repr, sorted(self._labels[setting]))) or "none"
                raise ConfigError(
                    f"{setting} has {unknown[0]!r}; the parts of the observation that have {setting} are: "
                    f"{labels}."
                )

    def __call__(self, observation: Any) -> str:
        parts = self._format(observation)
        return ("\n" if any("\n" in part for part in parts) else ", ").join(parts)

    def _formatter(self, space: gymnasium.Space[Any], label: str) -> Format:
        if isinstance(space, Dict):
            return self._parts_formatter(space.spaces, label, list(map(str, space)))
        if isinstance(space, Tuple):
            return self._parts_formatter(dict(enumerate(space)), label, self._names(label, len(space)))
        if isinstance(space, Text):
            return lambda text: [_labeled(label, str(text))]
        if isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete):
            return self._array_formatter(space, label)
        raise ConfigError(
            f"{_part(label)} is {space}, which the general agent cannot describe. Turn it into one that it "
            "can with a wrapper (data.wrappers), or write an agent: format_observation is one method."
        )

    def _parts_formatter(
        self, parts: Mapping[Any, gymnasium.Space[Any]], label: str, names: Sequence[str]
    ) -> Format:
        formats = [
            (key, self._formatter(part, _join(label, name)))
            for (key, part), name in zip(parts.items(), names, strict=True)
        ]
        return lambda observation: [
            text for key, format_part in formats for text in format_part(observation[key])
        ]

    def _array_formatter(self, space: Box | Discrete | MultiBinary | MultiDiscrete, label: str) -> Format:
        shape = tuple(space.shape or ())
        size = math.prod(shape)
        if len(shape) > 2 or size > MAX_NUMBERS:
            raise _unreadable(label, size, shape)
        decimals = box_decimals(space) if isinstance(space, Box) else [None] * size
        if len(shape) == 2:
            places = self._decimals(label, decimals[0])
            return lambda array: [_labeled(label, _format_rows(array, places))]
        is_single = size == 1 and label not in self._settings["names"]
        labels = [_join(label, name) for name in ([""] if is_single else self._names(label, size))]
        if isinstance(space, MultiBinary):
            return lambda flags: [
                _labeled(label, "yes" if flag else "no")
                for label, flag in zip(labels, np.ravel(flags).tolist(), strict=True)
            ]
        numbers = [
            (label, self._decimals(label, places), self._setting("units", label, ""))
            for label, places in zip(labels, decimals, strict=True)
        ]
        return lambda array: [
            _labeled(label, f"{format_number(number, places)} {unit}".rstrip())
            for (label, places, unit), number in zip(numbers, np.ravel(array).tolist(), strict=True)
        ]

    def _setting(self, setting: str, label: str, default: Any) -> Any:
        self._labels[setting].add(label)
        return self._settings[setting].get(label, default)

    def _decimals(self, label: str, decimals: int | None) -> int | None:
        if decimals is None:  # whole numbers have none, whatever is set
            return None
        default = decimals if self._default_decimals is None else self._default_decimals
        return int(self._setting("decimals", label, default))

    def _names(self, label: str, count: int) -> Sequence[str]:
        names: Sequence[str] = self._setting("names", label, [str(number) for number in range(count)])
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
    return [max(0, 2 - math.floor(math.log10(span))) if 0 < span <= 1e6 else 2 for span in spans.tolist()]


def format_number(number: float, decimals: int | None) -> str:
    """A number as text, without decimals if `decimals` is `None`, and never as -0."""
    if decimals is None:
        return str(int(number))
    text = f"{number:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def _format_rows(array: Any, decimals: int | None) -> str:
    return "\n".join(" ".join(format_number(x, decimals) for x in row) for row in np.asarray(array).tolist())


def _join(label: str, name: str) -> str:
    return f"{label} {name}".strip()


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
        "or write an agent that says what matters: format_observation is one method."
    )
    return ConfigError(
        f"{_part(label)} is an array of {size:,} numbers, shape {shape}; up to {MAX_NUMBERS} in one or two "
        f"dimensions are read out. {remedy}"
    )
