"""The amount of inputs that the property tests try: `LGYM_FUZZ=100` tries a hundred times as many inputs,
other ones every time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

MORE = int(os.environ.get("LGYM_FUZZ", "1"))


def inputs(count: int) -> settings:
    """The settings for so many inputs, the same in every run; multiplied by `LGYM_FUZZ`, and then new
    ones."""
    return settings(
        max_examples=count * MORE,
        derandomize=MORE == 1,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
