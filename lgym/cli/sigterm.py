"""SIGTERM to a command that starts runs of `fit` in processes of their own."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM. Unlike Ctrl-C in a terminal it has not reached the processes that the command started."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Context manager, of the main thread, in which SIGTERM raises `Terminated`."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: Any) -> None:
    raise Terminated(signal.Signals(number).name)
