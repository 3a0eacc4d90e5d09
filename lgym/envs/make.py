"""Construction of Gymnasium environments, with errors that say the way out."""

import difflib
import importlib
import math
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from reprlib import repr as short
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import parse_env_id
from gymnasium.error import DependencyNotInstalled, DeprecatedEnv, Error, UnregisteredEnv

from lgym.envs.frame_skip import FrameSkip
from lgym.types import ConfigError

# A wrapper class such as `gymnasium.wrappers.ClipReward` with its settings
EnvWrapper: TypeAlias = Callable[[gymnasium.Env], gymnasium.Env]


REGISTERED_BY = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid"}
"""Packages that register environments when they are imported, by the beginning of these environments' ids."""


PRINTING_MODULES = ("minigrid.envs.babyai.core.roomgrid_level",)
"""Modules that print at resets what concerns nobody, as that a level was drawn again."""


DEFAULT_TIME_LIMIT = 1000
"""Steps after which an episode is truncated where an environment has no limit: a policy that goes round in
circles would play on for ever."""


class DefaultTimeLimit(gymnasium.wrappers.TimeLimit):
    """The time limit of an environment that has none: `DEFAULT_TIME_LIMIT`, or its own `max_steps` where that
    is later. Levels of BabyAI set theirs at each reset."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env, DEFAULT_TIME_LIMIT)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        first = super().reset(seed=seed, options=options)
        self._max_episode_steps = max(DEFAULT_TIME_LIMIT, own_limit(self.unwrapped) or 0)
        return first


class CheckReturns(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds an environment to Gymnasium's API (since 0.26), and makes each reward a float: arrays of one
    number pass.

    Raises:
        TypeError: from `reset` for anything but (observation, info), and from `step` for anything but
            (observation, reward, terminated, truncated, info).
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        first = self.env.reset(seed=seed, options=options)
        if not (isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], Mapping)):
            raise TypeError(
                f"reset returned {short(first)}; return (observation, info), where info is a dict"
            )
        return first

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result: Any = self.env.step(action)
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], Mapping)):
            raise TypeError(
                f"step returned {short(result)}; return (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = result
        try:
            reward = float(reward)
        except TypeError as error:  # NumPy's, of any array
            if np.size(reward) != 1:
                message = f"step returned the reward {short(reward)}, which is not one number"
                raise TypeError(message) from error
            reward = float(np.asarray(reward).item())
        return observation, reward, terminated, truncated, info


def make_env(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    wrappers: Sequence[EnvWrapper] = (),
    frame_skip: int = 1,
) -> gymnasium.Env:
    """Make an environment without the passive checker, which slows every step, and with wrappers around it.

    Args:
        env_id: the registered id; `package:Env-v0` imports the package first. MiniGrid's need no package.
        env_kwargs: keyword arguments of the environment's constructor.
        max_episode_steps: the time limit in environment steps; `None` keeps the environment's own,
            or takes `DEFAULT_TIME_LIMIT` where there is none, and -1 removes it.
        wrappers: put around the environment, the last outermost.
        frame_skip: environment steps that an action is repeated for, inside the wrappers and outside the time
            limit.

    Raises:
        ValueError: for an id that is not registered, a package that is not installed, keyword arguments that
            the environment does not take, a limit that is no number of steps, and a wrapper that does not
            fit.
    """
    if max_episode_steps is not None and max_episode_steps < 1 and max_episode_steps != -1:
        raise ConfigError(
            f"max_episode_steps={max_episode_steps}: give 1 or more, -1 for no limit, or None for the "
            "registered one"
        )
    env_id = _with_package(env_id)
    try:  # Gymnasium has no error class of its own for ids such as '' or 'Frozen Lake'
        parse_env_id(env_id.rpartition(":")[2])
    except Error as error:
        raise _unknown(env_id, error) from error
    try:
        env = gymnasium.make(
            env_id, max_episode_steps=max_episode_steps, disable_env_checker=True, **dict(env_kwargs or {})
        )
    except (UnregisteredEnv, DeprecatedEnv) as error:
        raise _unknown(env_id, error) from error
    except (DependencyNotInstalled, ModuleNotFoundError) as error:
        raise _missing_package(env_id, error) from error
    except TypeError as error:
        raise ConfigError(
            f"{env_id!r} could not be built with env_kwargs={dict(env_kwargs or {})!r}: {error}. "
            "See the environment's documentation for the arguments that it takes."
        ) from error
    for name in sys.modules.keys() & set(PRINTING_MODULES):
        vars(sys.modules[name])["print"] = _say_nothing
    env = CheckReturns(env)
    if max_episode_steps is None and env.spec is not None and env.spec.max_episode_steps is None:
        env = DefaultTimeLimit(env)
    if frame_skip > 1:
        env = FrameSkip(env, frame_skip)
    for number, wrapper in enumerate(wrappers, start=1):
        env = _wrap(env, wrapper, f"Wrapper {number} of {len(wrappers)}")
    return env


def require_registered(env_id: str) -> None:
    """Refuse an id that no environment has, without making one: that may need `env_kwargs`.

    Raises:
        ConfigError: if it is not registered, or its package is not installed.
    """
    env_id = _with_package(env_id)
    package, _, name = env_id.rpartition(":")
    try:
        if package:
            importlib.import_module(package)
        gymnasium.spec(name)
    except ModuleNotFoundError as error:
        raise _missing_package(env_id, error) from error
    except Error as error:
        raise _unknown(env_id, error) from error


def _with_package(env_id: str) -> str:
    """The id with the package in front of it that registers it, where that is known."""
    package = next((name for start, name in REGISTERED_BY.items() if env_id.startswith(start)), None)
    return env_id if package is None else f"{package}:{env_id}"


def _missing_package(env_id: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{env_id!r} needs a package that this Python does not have: {str(error).rstrip('.')}. "
        "Install it, or check the spelling of the id."
    )


def _say_nothing(*words: Any) -> None:
    pass


def own_limit(env: gymnasium.Env) -> int | None:
    """The attribute `max_steps`, at which MiniGrid ends episodes by itself; `None` where it is no number of
    steps."""
    steps = getattr(env, "max_steps", None)
    size = float(steps) if isinstance(steps, numbers.Real) and not isinstance(steps, bool) else math.nan
    return int(size) if 1 <= size < math.inf else None


def time_limit(env: gymnasium.Env) -> int | None:
    """Turns after which an episode is truncated: by a limit that the environment is registered with, by the
    run's, or by its own `max_steps`, as MiniGrid's. None where it is only `DEFAULT_TIME_LIMIT`."""
    steps, frame_skip = None, 1
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, FrameSkip):
            frame_skip = env.frame_skip
        elif isinstance(env, gymnasium.wrappers.TimeLimit) and not isinstance(env, DefaultTimeLimit):
            steps = env._max_episode_steps
        env = env.env
    steps = steps or own_limit(env)
    return None if steps is None else math.ceil(steps / frame_skip)


def portable(wrapper: EnvWrapper) -> EnvWrapper:
    """A wrapper of a YAML as its class and settings alone, which can be sent to a worker process.

    The object that jsonargparse makes of it holds the whole command line, and with it torch and every process
    of the run.
    """
    if (
        isinstance(wrapper, partial)
        and wrapper.args
        and str(wrapper.func.__module__).startswith("jsonargparse.")
    ):
        return partial(wrapper.args[-1], **wrapper.keywords)
    return wrapper


def _wrap(env: gymnasium.Env, wrapper: EnvWrapper, name: str) -> gymnasium.Env:
    try:
        wrapped = wrapper(env)
    # Gymnasium's, of unfit spaces and of packages that are not there; an assertion need not say anything
    except (
        AssertionError, AttributeError, ImportError, NotImplementedError, TypeError, ValueError, Error
    ) as error:  # fmt: skip
        reason = str(error) or type(error).__name__
        raise ConfigError(f"{name} cannot be put round {env}: {reason}") from error
    if not isinstance(wrapped, gymnasium.Env):
        raise ConfigError(f"{name} made {wrapped!r} of {env}; it must make an environment.")
    return wrapped


def _unknown(env_id: str, error: Error) -> ConfigError:
    registered = {name.casefold(): name for name in gymnasium.registry}
    matches = difflib.get_close_matches(env_id.rpartition(":")[2].casefold(), registered, n=3)
    suggestions = f" Close to it: {', '.join(registered[name] for name in matches)}." if matches else ""
    return ConfigError(
        f"{env_id!r} is not a registered environment ({str(error).rstrip('.')}).{suggestions} An environment "
        "of another package is named with the module that registers it, 'package:Env-v0'; "
        "`gymnasium.pprint_registry()` lists all."
    )
