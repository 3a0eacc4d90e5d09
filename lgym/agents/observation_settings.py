"""Settings of the text of observations, for all of their parts or by label."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lgym.types import ConfigError

Words: TypeAlias = bool | Sequence[str]


@dataclass(frozen=True)
class ObservationSettings:
    """Settings of an `ObservationFormatter`. A label is a part's name behind the names of what it lies in.

    Attributes:
        names: of the parts of a vector or `Tuple`; of several, by the label of each.
        decimals: of numbers that are not whole, or by label; negative ones are tens and so on. By default a
            hundredth of the range.
        units: by label.
        resolution: the step that the numbers of boxes are rounded to, or by label.
        words: whether numbers that are not whole are said in words; or by label, true or the words from
            those for the smallest numbers to those for the largest.
        scale: the size from which a number in words counts as far or fast; or by label.
        parts: labels of the parts that are shown, in their order; all by default.
        drop: labels of the parts that are not shown.
    """

    names: Sequence[str] | Mapping[str, Sequence[str]] | None = None
    decimals: int | Mapping[str, int] | None = None
    units: Mapping[str, str] | None = None
    resolution: float | Mapping[str, float] | None = None
    words: bool | Mapping[str, Words] | None = None
    scale: float | Mapping[str, float] | None = None
    parts: Sequence[str] | None = None
    drop: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.parts is not None and self.drop is not None:
            raise ConfigError("parts and drop are both set: choose parts, or leave some out.")
        for setting in ("resolution", "scale"):
            value = getattr(self, setting)
            for size in value.values() if isinstance(value, Mapping) else [value]:
                if size is not None and not (math.isfinite(size) and size > 0):
                    raise ConfigError(f"{setting} has {size!r}; it must be a number above 0.")

    def by_label(self, setting: str) -> "ByLabel":
        """The values of one setting by label."""
        value = getattr(self, setting)
        if isinstance(value, Mapping):
            return ByLabel(setting, value)
        return ByLabel(setting, {"": value} if setting == "names" and value is not None else {}, value)


class ByLabel:
    """The values of one setting, and the labels of the parts that have it.

    Args:
        setting: its name.
        values: by label.
        common: for all labels that are not among them.
    """

    def __init__(self, setting: str, values: Mapping[str, Any], common: Any = None) -> None:
        self._setting, self._common = setting, common
        self._values = {str(label): value for label, value in values.items()}  # a YAML's 0 is the label '0'
        self._labels: set[str] = set()

    def get(self, label: str, default: Any = None) -> Any:
        """The value for a part, which from here on is known to have the setting."""
        self._labels.add(label)
        value = self._values.get(label, None if self._setting == "names" else self._common)
        return default if value is None else value

    def __contains__(self, label: str) -> bool:
        return label in self._values

    def require_known(self) -> None:
        """Raise `ValueError` if there is a value for a label that no part with the setting has."""
        if unknown := sorted(set(self._values) - self._labels):
            labels = ", ".join(map(repr, sorted(self._labels))) or "none"
            raise ConfigError(
                f"{self._setting} has {unknown[0]!r}; the parts of the observation that have "
                f"{self._setting} are: {labels}."
            )


class Selection:
    """The parts of an observation that are shown, by label: a label stands for all that lies in it.

    Args:
        settings: with `parts` or `drop`.
    """

    def __init__(self, settings: ObservationSettings) -> None:
        self._parts, self._drop = settings.parts, settings.drop or ()
        self._labels: dict[str, None] = {}
        self._inside: dict[str, str] = {}

    def put(self, label: str, *, inside: str) -> None:
        """Say what a part lies in: "arm speed" may be the speed of an arm, or stand beside one."""
        if label != inside:
            self._inside[label] = inside

    def shows(self, label: str, *, whole: bool = True) -> bool:
        """True if a part is shown; unless `whole`, if anything in it is."""
        self._labels[label] = None
        if self._parts is None:
            return not any(self._within(label, other) for other in self._drop)
        return any(
            self._within(label, part) or (not whole and part.startswith(f"{label} ".lstrip()))
            for part in self._parts
        )

    def rank(self, label: str) -> int:
        """The place of a part that is shown."""
        return next((i for i, part in enumerate(self._parts or ()) if self._within(label, part)), 0)

    def require_known(self) -> None:
        """Raise `ValueError` for a label that no part has, and if nothing is left to show."""
        setting = "drop" if self._parts is None else "parts"
        labels = ", ".join(map(repr, filter(None, self._labels))) or "none"
        for given in self._drop if self._parts is None else self._parts:
            if given not in self._labels:
                raise ConfigError(f"{setting} has {given!r}; the parts of the observation are: {labels}.")

    def _within(self, label: str, other: str) -> bool:
        while label and label != other:
            label = self._inside.get(label, "")
        return label == other
