"""Seconds of this process by phase, counted in every run.

    with phase("playing"):
        with part("environments"):
            ...

Every second counts once, for the innermost phase, so that phases add up to the time that was watched.
"""

import time
from collections.abc import Callable
from contextlib import ContextDecorator

_seconds: dict[str, float] = {}
_current: str | None = None
_since = 0.0
_wait: Callable[[], None] | None = None


class phase(ContextDecorator):
    """The block, or the function, is of this phase, such as `playing`, or of a part of one, such as
    `learning/loss`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._before = _switch(self._name)

    def __exit__(self, *_: object) -> None:
        _switch(self._before)

    def _recreate_cm(self) -> "phase":
        return phase(self._name)


def part(name: str) -> phase:
    """The block is a part of the phase that it is in, such as `environments` of `playing`."""
    return phase(name if _current is None else f"{_current.partition('/')[0]}/{name}")


def seconds_by_phase() -> dict[str, float]:
    """Seconds of every phase since the process started, without those of its parts."""
    _switch(_current)
    return dict(_seconds)


def wait_for_device(wait: Callable[[], None] | None) -> None:
    """Have every phase end with a call that waits for what it has started on a device, such as
    `torch.cuda.synchronize`; `None` does not wait."""
    global _wait
    _wait = wait


def _switch(name: str | None) -> str | None:
    """Go over to a phase, or out of all; the one before."""
    global _current, _since
    if _wait is not None:
        _wait()
    before, now = _current, time.perf_counter()
    if before is not None:
        _seconds[before] = _seconds.get(before, 0.0) + now - _since
    _current, _since = name, now
    return before
