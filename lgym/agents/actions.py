"""Action spaces in words: what can be said, and which action of the environment it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Protocol, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.wrappers import DiscretizeAction

from lgym.agents.describe import box_decimals, rounded
from lgym.agents.parsing import action_number
from lgym.types import ConfigError, ParsedAction

Names: TypeAlias = Sequence[str] | Sequence[Sequence[str]]


class SpokenActions(Protocol):
    """An action space in words."""

    count: int | None
    """How many actions there are; `None` for texts."""

    form: str
    """How to answer, as a sentence for the prompt."""

    def texts(self) -> tuple[str, ...]:
        """Every action in words, in the environment's order."""
        ...

    def allowed(self, mask: Any) -> list[bool]:
        """Of each of `texts`, whether a mask allows it, one such as `action_space.sample(mask)` takes."""
        ...

    def read(self, text: str) -> ParsedAction:
        """The environment's action that a text names."""
        ...


def spoken(env: gymnasium.Env, names: Names | None = None) -> SpokenActions:
    """The environment's actions in words; `names` are those of a `Discrete` space's actions, or for each part of a
    `MultiDiscrete` or `MultiBinary` one those of its values.

    Raises:
        ValueError: for a space that cannot be spoken, and for names that do not fit it.
    """
    space = env.action_space
    if isinstance(space, Discrete):
        return OneOf(space, _texts(names, space) if names is not None else _levels(env))
    if isinstance(space, MultiDiscrete | MultiBinary):
        return SeveralOf(space, names)
    if isinstance(space, Text):
        if names is not None:
            raise ConfigError(f"actions are named {list(names)}, and the environment takes any text: leave `actions` out.")
        return AnyText(space)
    if isinstance(space, Box):
        raise ConfigError(
            f"{_name(env)}'s actions are numbers, {space}, and a language model answers in words. Let it choose between "
            f"some of them: 3 levels of each number are {3 ** math.prod(space.shape):,} actions in all, by "
            "data.wrappers: [{class_path: gymnasium.wrappers.DiscretizeAction, init_args: {bins: 3}}]."
        )
    raise ConfigError(
        f"{_name(env)}'s actions are {space}, which the general agent cannot say. Turn them into a Discrete space with a "
        "wrapper of your own (data.wrappers), or write an agent whose extract_action makes them."
    )


class OneOf:
    """A `Discrete` space: one name an action, by default its number."""

    def __init__(self, space: Discrete, names: Sequence[str] | None) -> None:
        self._start, size = int(space.start), int(space.n)
        self._names = tuple(map(str, range(self._start, self._start + size)) if names is None else names)
        _require_names(self._names, size, space)
        self.count: int | None = size
        self.form = f"Answer with one of these: {_list(self._names)}."

    def texts(self) -> tuple[str, ...]:
        return self._names

    def allowed(self, mask: Any) -> list[bool]:
        return [bool(may) for may in mask]

    def read(self, text: str) -> ParsedAction:
        number = action_number(text, self._names)
        if number is None:
            return ParsedAction.failure(f"{text!r} is none of {_list(self._names)}")
        return ParsedAction(self._start + number)


class SeveralOf:
    """A `MultiDiscrete` or `MultiBinary` space: a name for each of its parts, separated by commas."""

    def __init__(self, space: MultiDiscrete | MultiBinary, names: Names | None) -> None:
        self._space = space
        self._start = np.ravel(space.start) if isinstance(space, MultiDiscrete) else np.zeros(math.prod(space.shape), int)
        sizes = np.ravel(space.nvec) if isinstance(space, MultiDiscrete) else np.full(len(self._start), 2)
        self.count: int | None = math.prod(sizes.tolist())
        self._names = self._default(sizes) if names is None else self._given(names, sizes)
        choices = "; ".join(f"one of {_list(part)}" for part in self._names)
        self.form = f"Answer with {len(self._names)} choices, separated by commas: {choices}."

    def texts(self) -> tuple[str, ...]:
        return tuple(", ".join(parts) for parts in product(*self._names))

    def allowed(self, mask: Any) -> list[bool]:
        if isinstance(self._space, MultiBinary):  # Gymnasium's 0 and 1 are the only value allowed, and 2 is either
            mask = [(part != 1, part != 0) for part in np.ravel(mask).tolist()]
        return [all(parts) for parts in product(*mask)]

    def read(self, text: str) -> ParsedAction:
        said = text.split(",")
        numbers = [action_number(part, names) for part, names in zip(said, self._names, strict=False)]
        if len(said) != len(self._names) or None in numbers:
            return ParsedAction.failure(f"{text!r} is not {len(self._names)} choices of the right names, between commas")
        action = (np.array(numbers) + self._start).reshape(self._space.shape)
        return ParsedAction(action.astype(self._space.dtype))

    def _default(self, sizes: np.ndarray) -> list[tuple[str, ...]]:
        return [
            tuple(map(str, range(start, start + size)))
            for start, size in zip(self._start.tolist(), sizes.tolist(), strict=True)
        ]

    def _given(self, names: Names, sizes: np.ndarray) -> list[tuple[str, ...]]:
        if len(names) != len(sizes) or any(isinstance(part, str) for part in names):
            raise ConfigError(
                f"actions are named {list(names)}; {self._space} needs {len(sizes)} lists of names, such as "
                "[[left, right], [slow, fast]]."
            )
        for part, size in zip(names, sizes.tolist(), strict=True):
            _require_names(part, size, self._space)
            if any("," in name for name in part):
                raise ConfigError(f"actions are named {list(part)}; a comma separates the parts of {self._space}.")
        return [tuple(part) for part in names]


class AnyText:
    """A `Text` space: what the model says, without the space around it."""

    count: int | None = None

    def __init__(self, space: Text) -> None:
        self._space = space
        self.form = f"Answer with a text of {space.min_length} to {space.max_length} characters."

    def texts(self) -> tuple[str, ...]:
        return ()

    def allowed(self, mask: Any) -> list[bool]:
        return []

    def read(self, text: str) -> ParsedAction:
        said = text.strip()
        if self._space.contains(said):
            return ParsedAction(said)
        return ParsedAction.failure(f"{said!r} is not in {self._space}")


def _texts(names: Names, space: gymnasium.Space) -> list[str]:
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"actions are named {list(names)}; {space} needs one list of names.")
    return [str(name) for name in names]


def _levels(env: gymnasium.Env) -> list[str] | None:
    """Of actions that `DiscretizeAction` made, the numbers that they stand for; `None` where that is not so."""
    wrapper = env
    while isinstance(wrapper, gymnasium.Wrapper):
        inner = wrapper.env.action_space
        if isinstance(wrapper, DiscretizeAction) and isinstance(inner, Box) and wrapper.action_space == env.action_space:
            actions = [np.ravel(wrapper.action(number)).tolist() for number in range(math.prod(wrapper.bins.tolist()))]
            names = [" ".join(map(rounded, action, box_decimals(inner))) for action in actions]
            return names if len(set(names)) == len(names) else None
        wrapper = wrapper.env
    return None


def _require_names(names: Sequence[str], count: int, space: gymnasium.Space) -> None:
    if len(names) != count or len({name.strip().casefold() for name in names}) < count:
        raise ConfigError(f"actions are named {list(names)}; {space} needs {count} different names.")


def _list(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names if len(names) <= most else (*names[: most - 2], "…", names[-1]))


def _name(env: gymnasium.Env) -> str:
    return env.spec.id if env.spec is not None else str(env)
