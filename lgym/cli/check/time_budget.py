"""The time of a check: a deadline, and Ctrl-C."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class CheckInterrupted(BaseException):
    """The time is up, or Ctrl-C was pressed. No `Exception`, so that nobody's code takes it for its own."""


class TimeBudget:
    """The seconds that a check may take, from its beginning.

    Args:
        seconds: all of them.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._started = time.perf_counter()

    @property
    def left(self) -> float:
        """Seconds until the end, at least 0."""
        return max(0.0, self._started + self.seconds - time.perf_counter())

    def until(self, fraction: float, *, at_most: float = float("inf")) -> float:
        """Seconds until so much of the budget is used up, at least 0 and `at_most` so many."""
        return min(at_most, max(0.0, self.left - (1.0 - fraction) * self.seconds))


@contextmanager
def interruptible(budget: TimeBudget) -> Iterator[None]:
    """Context manager in which the end of the budget, and Ctrl-C, raise `CheckInterrupted`.

    Signals reach the main thread alone, and Windows has no alarm: there the check's parts still end by
    themselves, each when its share of the time is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise CheckInterrupted(
            "by Ctrl-C" if number == signal.SIGINT else f"after {budget.seconds:g} seconds"
        )

    names = [name for name in ("SIGINT", "SIGALRM") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), stop) for name in names}
    has_alarm = "SIGALRM" in before
    if has_alarm:
        signal.setitimer(signal.ITIMER_REAL, max(budget.left, 0.001))
    try:
        yield
    finally:
        if has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
