"""A run's metrics, from TensorBoard's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Curve = list[tuple[float, float]]
"""Turns that the run had learned from, and a value."""

TURNS = "rollout/total_turns"
DIGITS = 5


class Entry(NamedTuple):
    """One entry of a metric.

    Attributes:
        time: when it was written, in seconds since 1970.
        step: of the trainer.
        value: of the metric.
    """

    time: float
    step: int
    value: float


def over_turns(entries: Sequence[Entry], turns: Mapping[int, float]) -> Curve:
    """A metric by step as a curve over turns.

    Args:
        entries: in the order of writing. Of two at one step the first was before it.
        turns: turns of the run so far by the step at which a rollout ended.
    """
    before_learning = len(entries) > 1 and entries[0].step == entries[1].step
    steps = [-1 if before_learning and place == 0 else entry.step for place, entry in enumerate(entries)]
    return [
        (turns.get(step, 0.0), float(f"{entry.value:.{DIGITS}g}"))
        for step, entry in zip(steps, entries, strict=True)
    ]


def by_step(entries: Sequence[Entry]) -> dict[int, float]:
    """Values by step; of a step that was written twice, the later value."""
    return {entry.step: entry.value for entry in entries}


def read_scalars(run: Path) -> dict[str, list[Entry]]:
    """Each metric's entries in TensorBoard's files, in the order of writing. (They are read by name, which
    puts the tenth file of one second before its ninth.)"""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return scalars_of(events)


def scalars_of(events: EventAccumulator) -> dict[str, list[Entry]]:
    """The same of files that have been read."""
    return {
        tag: sorted((Entry(e.wall_time, e.step, e.value) for e in events.Scalars(tag)), key=lambda e: e.time)
        for tag in events.Tags()["scalars"]
    }
