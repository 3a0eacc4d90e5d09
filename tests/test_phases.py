"""Seconds by phase, on a clock that only the tests move."""

from __future__ import annotations

import pytest

from lgym import phases
from lgym.phases import part, phase, seconds_by_phase, wait_for_device


@pytest.fixture
def clock(monkeypatch):
    """Moves the time by so many seconds; no phase has any before."""
    now = [0.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(phases, "_seconds", {})

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_a_second_counts_once_for_the_innermost_phase(clock):
    """Counted for the outer one too, phases would add up to more than the run."""
    clock(5)
    with phase("playing"):
        clock(1)
        with part("environments"):
            clock(2)
        with part("policy"):
            clock(4)
            with part("environments"):  # still a part of playing, not of the policy
                clock(8)
        clock(16)
    clock(5)
    with phase("learning/loss"), part("policy"):
        clock(32)
    assert seconds_by_phase() == {
        "playing": 17,
        "playing/environments": 10,
        "playing/policy": 4,
        "learning/loss": 0,
        "learning/policy": 32,
    }


def test_a_phase_at_work_is_counted_so_far(clock):
    with phase("playing"):
        clock(1)
        assert seconds_by_phase() == {"playing": 1}
        clock(2)
    assert seconds_by_phase() == {"playing": 3}


def test_an_error_ends_its_phase(clock):
    """Else all that follows would be counted for it."""

    @phase("playing")
    def fall() -> None:
        clock(1)
        raise ValueError("fell")

    with pytest.raises(ValueError, match="fell"):
        fall()
    clock(7)
    assert seconds_by_phase() == {"playing": 1}


def test_a_function_may_be_a_phase_within_itself(clock):
    @phase("learning")
    def count_down(n: int) -> None:
        clock(1)
        if n > 0:
            count_down(n - 1)
        clock(1)

    count_down(2)
    clock(9)
    assert seconds_by_phase() == {"learning": 6}


def test_the_end_of_a_phase_waits_for_the_device(clock):
    """What a GPU is still busy with belongs to the phase that has started it."""
    wait_for_device(lambda: clock(3))
    try:
        with phase("learning"):
            clock(1)
    finally:
        wait_for_device(None)
    clock(1)
    assert seconds_by_phase() == {"learning": 4}


def test_a_part_outside_of_all_phases_stands_for_itself(clock):
    with part("policy"):
        clock(1)
    assert seconds_by_phase() == {"policy": 1}
