"""Discounts of an algorithm: as they are given, or as random play decides them."""

from typing import Any

from lgym.types import DISCOUNTS


def discount(module: Any, name: str, given: float | None) -> float:
    """A discount per turn: the given one, that of the run's data module, or lgym's default.

    Args:
        module: the algorithm's.
        name: `gamma` or `gae_lambda`.
        given: null for none.
    """
    return given if given is not None else float(module.data_setting(name, DISCOUNTS[name]))
