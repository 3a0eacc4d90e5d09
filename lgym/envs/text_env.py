"""Games of one's own, of GEM and of TextArena, which read and return text, as Gymnasium environments."""

import importlib
import inspect
import random
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Text
from gymnasium.utils import EzPickle

from lgym.types import ConfigError

LONGEST = 100_000  # the characters of an observation

LONGEST_ACTION = 10_000


class TextEnv(gymnasium.Env[str, str], EzPickle):
    """A game that is played by texts: `reset` and `step` return them, and `step` takes one.

    `reset()` returns a text, or a text and an info, as GEM's games do. It is given the `seed` if it takes
    one. `step(text)` returns (text, reward, done), (text, reward, done, info) or Gymnasium's (text, reward,
    terminated, truncated, info). TextArena's games of one player, whose texts come from `get_observation` and
    whose rewards from `close`, are played as well.

    Games may draw from `random` and `numpy.random`: each environment has states of its own of these global
    generators, which its reset seed sets. So equal seeds start equal episodes, whatever else draws from them,
    and a game disturbs neither another nor the run. What a game draws when it is made is the same each time.

    Args:
        class_path: the game's class, or a function that makes one, such as my_games.Guess or textarena.make.
        init_args: its arguments.

    Raises:
        ValueError: if there is no such class, and if the game cannot be played by texts.
    """

    observation_space = Text(LONGEST, min_length=0, charset=string.printable)
    action_space = Text(LONGEST_ACTION, charset=string.printable)

    def __init__(self, class_path: str, init_args: Mapping[str, Any] | None = None) -> None:
        EzPickle.__init__(self, class_path, init_args)
        self._name = class_path
        self._chance = GlobalRandomState()
        make = _imported(class_path)
        with self._chance.active():
            self._game = make(**(init_args or {}))
        if not all(callable(getattr(self._game, method, None)) for method in ("reset", "step")):
            raise ConfigError(f"{class_path} made {self._game!r}, which has no reset and step.")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._chance.seed(seed)
        with self._chance.active():
            result = self._game.reset(**_accepted(self._game.reset, {"seed": seed, "num_players": 1}))
            if self._is_textarena:
                result = self._game.get_observation()[1]
        text, info = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        return self._text("reset", text), dict(info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        with self._chance.active():
            result = self._textarena_step(action) if self._is_textarena else self._game.step(action)
        if not isinstance(result, tuple) or not 3 <= len(result) <= 5:
            raise ConfigError(
                f"{self._name}.step returned {result!r}; return (text, reward, done), (text, reward, done, "
                "info) or (text, reward, terminated, truncated, info)."
            )
        text, reward, terminated, *rest = result
        info = rest.pop() if rest else {}
        truncated = bool(rest and rest[0])
        return self._text("step", text), float(reward), bool(terminated), truncated, dict(info)

    def close(self) -> None:
        if not self._is_textarena and callable(close := getattr(self._game, "close", None)):
            with self._chance.active():
                close()

    @property
    def _is_textarena(self) -> bool:
        """By a method of its own, and the number of players that its `reset` asks for."""
        takes_players = "num_players" in inspect.signature(self._game.reset).parameters
        return takes_players and callable(getattr(self._game, "get_observation", None))

    def _textarena_step(self, action: str) -> tuple[Any, ...]:
        done, info = self._game.step(action=action)
        if not done:
            return self._game.get_observation()[1], 0.0, False, info
        rewards, game_info = self._game.close()
        return "", rewards[0], True, {**info, **game_info.get(0, {})}

    def _text(self, method: str, text: Any) -> str:
        if not isinstance(text, str):
            raise ConfigError(
                f"{self._name}.{method} returned {text!r} where its text should be. Return a text, or give "
                "class_path a function that wraps the game in one that does."
            )
        return text


class GlobalRandomState:
    """States of the generators of `random` and `numpy.random` that hold within `active` alone."""

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Start anew from a seed."""
        self._state = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Put the states in place of those of the process, and these back afterwards."""
        outer = random.getstate(), np.random.get_state()
        _set_states(*self._state)
        try:
            yield
        finally:
            self._state = random.getstate(), np.random.get_state()
            _set_states(*outer)


def _set_states(python: Any, numpy: Any) -> None:
    random.setstate(python)
    np.random.set_state(numpy)


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the arguments that a function does not name."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in names}


def _imported(class_path: str) -> Callable[..., Any]:
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"class_path {class_path!r} cannot be imported: {error}. Give the module and the class, such as "
            "my_games.Guess, of a file in the working directory or of an installed package."
        ) from error
    if not callable(found):
        raise ConfigError(f"class_path {class_path!r} is {found!r}, which makes no game.")
    return found


gymnasium.register("lgym/TextEnv-v0", "lgym.envs.text_env:TextEnv")
