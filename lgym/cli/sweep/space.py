"""The settings that a sweep tries, by their names on the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from optuna import Trial

from lgym.types import ConfigError

RANGE_KEYS = {"low", "high", "log", "step"}
Choice = bool | int | float | str | None


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: whole ones where both are.

    Attributes:
        low: the smallest.
        high: the largest.
        log: orders of magnitude are equally likely.
        step: between numbers; `None` is any, or 1 of whole ones.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def suggest(self, trial: Trial, name: str) -> Any:
        """A trial's value."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log, step=int(self.step or 1))
        return trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step)

    def __contains__(self, value: Any) -> bool:
        """True if a sweep might try the value."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high


@dataclass(frozen=True)
class Choices:
    """Some values, such as `[16, 32, 64]` or `[null, 0.2]`."""

    values: tuple[Choice, ...]

    def suggest(self, trial: Trial, name: str) -> Any:
        """A trial's value."""
        return trial.suggest_categorical(name, self.values)

    def __contains__(self, value: Any) -> bool:
        """True if a sweep might try the value."""
        return value in self.values


Space = dict[str, Range | Choices]


def read_space(file: Path) -> Space:
    """The space of a YAML.

    Raises:
        ConfigError: if the file is missing or something in it is no range and no list.
    """
    if not file.is_file():
        raise ConfigError(f"--space {file}: there is no such file.")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"--space {file} is no YAML: {error}") from error
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"--space {file} has to name settings, such as `data.update_epochs: [1, 2, 4]`.")
    return {str(name): _part(file, str(name), value) for name, value in content.items()}


def _part(file: Path, name: str, value: Any) -> Range | Choices:
    if isinstance(value, list) and value:
        if not all(isinstance(one, Choice) for one in value):
            raise ConfigError(f"--space {file}: the choices of {name} have to be numbers, texts or null.")
        return Choices(tuple(value))
    if isinstance(value, Mapping) and {"low", "high"} <= set(value) <= RANGE_KEYS:
        numbers = [value[key] for key in ("low", "high", "step") if value.get(key) is not None]
        if all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
            part = Range(**value)
            if part.low < part.high and (not part.log or (part.low > 0 and part.step is None)):
                return part
    raise ConfigError(
        f"--space {file}: {name} is {value!r}. A setting has a list of choices, or numbers as {{low: 1.0e-4, "
        "high: 1.0e-2, log: true}: low below high, above 0 with log, and a step only without it."
    )


def suggest(space: Space, trial: Trial) -> dict[str, Any]:
    """A trial's value of each setting."""
    return {name: part.suggest(trial, name) for name, part in space.items()}
