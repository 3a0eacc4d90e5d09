"""JSON of requests as observations, and actions as JSON."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces


class BadInputError(Exception):
    """A request that cannot be answered; the message says why, and `status` is that of HTTP."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


def observation_of(space: spaces.Space[Any], value: Any, name: str = "observation") -> Any:
    """An observation, of the shape and type that the space has.

    Raises:
        BadInputError: if it is none of the space.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            raise BadInputError(f"{name} has to be an object with the keys {', '.join(space.spaces)}")
        return {key: observation_of(part, value[key], f"{name}.{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            raise BadInputError(f"{name} has to be a list of {len(space.spaces)}")
        return tuple(
            observation_of(part, own, f"{name}[{number}]")
            for number, (part, own) in enumerate(zip(space.spaces, value, strict=True))
        )
    found: Any = value
    if not isinstance(space, spaces.Text):
        try:
            found = np.asarray(value, dtype=space.dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise BadInputError(f"{name} does not fit {space}: {error}") from error
        if np.issubdtype(found.dtype, np.integer) and not np.array_equal(found, value):
            raise BadInputError(f"{name} does not fit {space}, which has whole numbers")
        if isinstance(space, spaces.Discrete) and found.ndim == 0:
            found = np.int64(found)
    if not space.contains(found):
        raise BadInputError(f"{name} does not fit {space}")
    return found


def as_json(value: Any) -> Any:
    """An environment's action as plain numbers, texts and lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return value
