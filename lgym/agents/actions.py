"""Action spaces as texts: the names of the actions, and the action that a text names."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import product
from reprlib import repr as short
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.wrappers import DiscretizeAction

from lgym.agents.number_words import format_number
from lgym.agents.observation_formatter import box_decimals
from lgym.agents.parsing import action_number
from lgym.types import ConfigError, ParsedAction

Names: TypeAlias = Sequence[str] | Sequence[Sequence[str]]

LONG_TEXT = 1000  # characters: the prompt names a limit of fewer


class ActionVocabulary(ABC):
    """An action space as texts.

    Attributes:
        count: the number of actions; `None` for texts.
        answer_format: the form of the answer, as a sentence for the prompt.
    """

    count: int | None = None
    answer_format: str

    def texts(self) -> tuple[str, ...]:
        """The text of every action, in the environment's order; none where there is no list of them."""
        return ()

    def allowed(self, mask: Any) -> list[bool]:
        """The mask over `texts`, 1 for a legal action, from one such as `action_space.sample(mask)` takes."""
        return [bool(legal) for legal in mask]

    @abstractmethod
    def parse(self, text: str) -> ParsedAction:
        """The environment's action that a text names."""


def action_vocabulary(env: gymnasium.Env, names: Names | None = None) -> ActionVocabulary:
    """The vocabulary of an environment's actions.

    Args:
        env: the environment.
        names: the names of a `Discrete` space's actions, or for each part of a `MultiDiscrete` or
            `MultiBinary` one the names of its values; `None` takes numbers.

    Raises:
        ValueError: for a space that has no vocabulary, and for names that do not fit it.
    """
    space = env.action_space
    env_name = env.spec.id if env.spec is not None else str(env)
    if isinstance(space, Discrete):
        return DiscreteActions(space, _bin_names(env) if names is None else names)
    if isinstance(space, MultiDiscrete | MultiBinary):
        return MultiDiscreteActions(space, names)
    if isinstance(space, Text):
        if names is not None:
            raise ConfigError(
                f"actions are named {list(names)}, and the environment takes any text: leave `actions` out."
            )
        return TextActions(space, env_name)
    if isinstance(space, Box):
        raise ConfigError(
            f"{env_name}'s actions are numbers, {space}, and a language model answers in words. Let it "
            "choose between "
            f"some of them: 3 levels of each number are {3 ** math.prod(space.shape):,} actions in all, by "
            "data.wrappers: [{class_path: gymnasium.wrappers.DiscretizeAction, init_args: {bins: 3}}]."
        )
    raise ConfigError(
        f"{env_name}'s actions are {space}, which the general agent cannot say. Turn them into a Discrete or "
        "MultiDiscrete space with a wrapper of your own, five lines that docs/environments.md shows, and "
        "name it in the YAML, data.wrappers: [{class_path: my_wrappers.FlatActions}]; or write an agent "
        "whose extract_action makes them."
    )


def is_action(space: gymnasium.Space[Any], action: Any) -> bool:
    """True for an action of a space; of a `Text` space any text is one, see `TextActions`."""
    return isinstance(action, str) if isinstance(space, Text) else space.contains(action)


class DiscreteActions(ActionVocabulary):
    """A `Discrete` space: one name per action, by default its number."""

    def __init__(self, space: Discrete, names: Names | None) -> None:
        self._start = int(space.start)
        self.count = int(space.n)
        if names is not None and not all(isinstance(name, str) for name in names):
            raise ConfigError(f"actions are named {list(names)}; {space} needs one list of names.")
        self._names = _numbers(self._start, self.count) if names is None else tuple(map(str, names))
        _require_names(self._names, self.count, space)
        self.answer_format = f"Answer with one of these: {_listed(self._names)}."

    def texts(self) -> tuple[str, ...]:
        return self._names

    def parse(self, text: str) -> ParsedAction:
        number = action_number(text, self._names)
        if number is None:
            return ParsedAction.failure(f"{text!r} is none of {_listed(self._names)}")
        return ParsedAction(self._start + number)


class MultiDiscreteActions(ActionVocabulary):
    """A `MultiDiscrete` or `MultiBinary` space: one name for each of its parts, separated by commas."""

    def __init__(self, space: MultiDiscrete | MultiBinary, names: Names | None) -> None:
        self._space = space
        if isinstance(space, MultiBinary):
            space = MultiDiscrete(np.full(space.shape, 2))
        sizes = np.ravel(space.nvec).tolist()
        self._start = np.ravel(space.start).tolist()
        self.count = math.prod(sizes)
        self._sizes = sizes
        if names is not None:
            _require_part_names(names, sizes, self._space)
        self._names = list(map(_numbers, self._start, sizes) if names is None else map(tuple, names))
        choices = "; ".join(f"one of {_listed(part)}" for part in self._names)
        self.answer_format = f"Answer with {len(self._names)} choices, separated by commas: {choices}."

    def texts(self) -> tuple[str, ...]:
        return tuple(map(", ".join, product(*self._names)))

    def allowed(self, mask: Any) -> list[bool]:
        if isinstance(self._space, MultiBinary):  # 0 and 1 are the only value allowed, and 2 is either
            mask = [(part != 1, part != 0) for part in np.ravel(mask).tolist()]
        masks = list(_part_masks(mask))
        return [all(parts) for parts in product(*masks)] if list(map(len, masks)) == self._sizes else []

    def parse(self, text: str) -> ParsedAction:
        parts = text.split(",")
        numbers = [action_number(part, names) for part, names in zip(parts, self._names, strict=False)]
        if len(parts) != len(self._names) or None in numbers:
            return ParsedAction.failure(
                f"{text!r} is not {len(self._names)} choices of the right names, between commas"
            )
        action = (np.array(numbers) + self._start).reshape(self._space.shape)
        return ParsedAction(action.astype(self._space.dtype))


def _part_masks(mask: Any) -> Iterator[list[bool]]:
    """The masks of the parts of an action in their order: rows of parts have nested ones."""
    if all(np.ndim(value) == 0 for value in mask):
        yield [bool(value) for value in mask]
    else:
        for inner in mask:
            yield from _part_masks(inner)


class TextActions(ActionVocabulary):
    """A `Text` space: the model's answer, stripped.

    Characters outside the charset are passed on, since few environments mean theirs: Gymnasium's default
    has no space. A charset without letters is meant, and other texts are then failures.
    """

    def __init__(self, space: Text, env_name: str) -> None:
        self._space = space
        self._has_letters = any(map(str.isalpha, space.character_set))
        longest = f"of at most {space.max_length} characters" if space.max_length < LONG_TEXT else ""
        characters = "" if self._has_letters else f"of the characters {space.characters}"
        self.answer_format = f"Answer with {' '.join(filter(None, ('a short text', characters, longest)))}."
        if not self._has_letters:
            warnings.warn(
                f"{env_name} takes texts of the characters {space.characters!r} alone: any other answer of "
                "the model counts as none. Find the action in the answer by the agent's pattern, such as "
                r"'\d+', or give the environment's action_space a wider charset.",
                stacklevel=2,
            )
        elif " " not in space.character_set:
            warnings.warn(
                f"{env_name}'s action_space has no space among its characters, as gymnasium.spaces.Text has "
                "by default. The environment gets the model's answers all the same. To say that it takes "
                f"them, give it a charset: Text({space.max_length}, charset=string.printable).",
                stacklevel=2,
            )

    def parse(self, text: str) -> ParsedAction:
        action = text.strip()
        if not self._space.min_length <= len(action) <= self._space.max_length:
            return ParsedAction.failure(
                f"{short(action)} has {len(action)} characters; the environment takes "
                f"{self._space.min_length} to {self._space.max_length}"
            )
        if not self._has_letters and not self._space.contains(action):
            return ParsedAction.failure(f"{short(action)} is not of the characters {self._space.characters}")
        return ParsedAction(action)


def _numbers(start: int, size: int) -> tuple[str, ...]:
    return tuple(map(str, range(start, start + size)))


def _bin_names(env: gymnasium.Env) -> list[str] | None:
    """The numbers that the actions of a `DiscretizeAction` wrapper stand for; `None` without one."""
    wrapper = env
    while isinstance(wrapper, gymnasium.Wrapper):
        box = wrapper.env.action_space
        if (
            isinstance(wrapper, DiscretizeAction)
            and isinstance(box, Box)
            and wrapper.action_space == env.action_space
        ):
            actions = [np.ravel(wrapper.action(number)) for number in range(math.prod(wrapper.bins.tolist()))]
            names = [" ".join(map(format_number, action.tolist(), box_decimals(box))) for action in actions]
            return names if len(set(names)) == len(names) else None
        wrapper = wrapper.env
    return None


def _require_part_names(names: Names, sizes: Sequence[int], space: gymnasium.Space[Any]) -> None:
    if len(names) != len(sizes) or any(isinstance(part, str) for part in names):
        raise ConfigError(
            f"actions are named {list(names)}; {space} needs {len(sizes)} lists of names, such as "
            "[[left, right], [slow, fast]]."
        )
    for part, size in zip(names, sizes, strict=True):
        _require_names(part, size, space)
        if any("," in name for name in part):
            raise ConfigError(f"actions are named {list(part)}; a comma separates the parts of {space}.")


def _require_names(names: Sequence[str], count: int, space: gymnasium.Space[Any]) -> None:
    if len(names) != count or len({name.strip().casefold() for name in names}) < count:
        raise ConfigError(f"actions are named {list(names)}; {space} needs {count} different names.")


def _listed(names: Sequence[str], max_names: int = 20) -> str:
    return ", ".join(names if len(names) <= max_names else (*names[: max_names - 2], "…", names[-1]))
