"""Making a Gymnasium environment, with errors that say the way out."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import parse_env_id
from gymnasium.error import DependencyNotInstalled, DeprecatedEnv, Error, UnregisteredEnv

from lgym.types import ConfigError

EnvWrapper: TypeAlias = Callable[[gymnasium.Env], gymnasium.Env]
"""What puts a wrapper round an environment: a class such as `gymnasium.wrappers.ClipReward` with its settings."""


def make_env(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    wrappers: Sequence[EnvWrapper] = (),
) -> gymnasium.Env:
    """`gymnasium.make`, without the passive checker, which slows every step, and with wrappers round it, the last outermost.

    `max_episode_steps` is in environment steps; `None` keeps the limit that the environment is registered with, and
    -1 removes it. Raises `ValueError` for an id that is not registered, a package that is not installed, keyword
    arguments that the environment does not take, a limit that is no number of steps, and a wrapper that does not fit.
    """
    if max_episode_steps is not None and max_episode_steps < 1 and max_episode_steps != -1:
        raise ConfigError(
            f"max_episode_steps={max_episode_steps}: give 1 or more, -1 for no limit, or None for the registered one"
        )
    _require_well_formed(env_id)
    try:
        env = gymnasium.make(env_id, max_episode_steps=max_episode_steps, disable_env_checker=True, **dict(env_kwargs or {}))
    except (UnregisteredEnv, DeprecatedEnv) as error:
        raise _unknown(env_id, error) from error
    except (DependencyNotInstalled, ModuleNotFoundError) as error:
        raise ConfigError(
            f"{env_id!r} needs a package that this Python does not have: {str(error).rstrip('.')}. "
            "Install it, or check the spelling of the id."
        ) from error
    except TypeError as error:
        raise ConfigError(
            f"{env_id!r} could not be built with env_kwargs={dict(env_kwargs or {})!r}: {error}. "
            "See the environment's documentation for the arguments that it takes."
        ) from error
    for number, wrapper in enumerate(wrappers, start=1):
        env = _wrapped(env, wrapper, f"Wrapper {number} of {len(wrappers)}")
    return env


def portable(wrapper: EnvWrapper) -> EnvWrapper:
    """A wrapper that a YAML names, as its class and its settings alone, which a worker process can be sent: what
    jsonargparse makes of it holds the whole command line, and with it torch and every process of the run."""
    if isinstance(wrapper, partial) and wrapper.args and str(wrapper.func.__module__).startswith("jsonargparse."):
        return partial(wrapper.args[-1], **wrapper.keywords)
    return wrapper


def _wrapped(env: gymnasium.Env, wrapper: EnvWrapper, which: str) -> gymnasium.Env:
    try:
        wrapped = wrapper(env)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:  # how Gymnasium's say that a space does not fit
        raise ConfigError(f"{which} cannot be put round {env}: {error}") from error
    if not isinstance(wrapped, gymnasium.Env):
        raise ConfigError(f"{which} made {wrapped!r} of {env}; it must make an environment.")
    return wrapped


def _require_well_formed(env_id: str) -> None:
    """Gymnasium has no error class of its own for ids such as '' or 'Frozen Lake'."""
    try:
        parse_env_id(env_id.rpartition(":")[2])
    except Error as error:
        raise _unknown(env_id, error) from error


def _unknown(env_id: str, error: Error) -> ConfigError:
    registered = {name.casefold(): name for name in gymnasium.registry}
    close = difflib.get_close_matches(env_id.rpartition(":")[2].casefold(), registered, n=3)
    meant = f" Close to it: {', '.join(registered[name] for name in close)}." if close else ""
    return ConfigError(
        f"{env_id!r} is not a registered environment ({str(error).rstrip('.')}).{meant} An environment of another "
        "package is named with the module that registers it, 'package:Env-v0'; `gymnasium.pprint_registry()` lists all."
    )
