"""The time of a check: shares of it, its end, and Ctrl-C."""

from __future__ import annotations

import signal
import time

import pytest

from lgym.cli.check.time_budget import CheckInterrupted, TimeBudget, interruptible


def test_shares_of_the_time(monkeypatch):
    """Of 60 s, 20 are over: 10 until half of them, none until a quarter, 40 in all."""
    now = iter([100.0, 120.0, 120.0, 120.0, 120.0, 999.0])
    monkeypatch.setattr("lgym.cli.check.time_budget.time.perf_counter", lambda: next(now))
    budget = TimeBudget(60.0)
    assert budget.until(0.5) == pytest.approx(10.0)
    assert budget.until(0.5, at_most=4.0) == 4.0
    assert budget.until(0.25) == 0.0
    assert budget.left == pytest.approx(40.0)
    assert budget.left == 0.0


def test_the_end_of_the_time_interrupts_whatever_runs():
    """Also where a part does not look at the clock; behind it no alarm is left."""
    before = signal.getsignal(signal.SIGALRM)
    started = time.perf_counter()
    with pytest.raises(CheckInterrupted, match=r"after 0\.2 seconds"), interruptible(TimeBudget(0.2)):
        time.sleep(30)
    assert time.perf_counter() - started < 10
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_ctrl_c_interrupts():
    """Instead of the KeyboardInterrupt for which Lightning would end the process."""
    before = signal.getsignal(signal.SIGINT)  # of a process in the background: that ignores it
    with pytest.raises(CheckInterrupted, match="Ctrl-C"), interruptible(TimeBudget(60.0)):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
