"""A run's metrics over turns, from TensorBoard's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Curve = list[tuple[float, float]]
"""Turns that the run had learned from, and a value."""

TURNS = "rollout/total_turns"
DIGITS = 5


def over_turns(entries: Sequence[tuple[int, float]], turns: Mapping[int, float]) -> Curve:
    """A metric by step as a curve over turns.

    Args:
        entries: step and value, in the order of writing. Of two at one step the first was before it.
        turns: turns of the run so far by the step at which a rollout ended.
    """
    before_learning = len(entries) > 1 and entries[0][0] == entries[1][0]
    steps = [-1 if before_learning and place == 0 else step for place, (step, _) in enumerate(entries)]
    return [
        (turns.get(step, 0.0), float(f"{value:.{DIGITS}g}"))
        for step, (_, value) in zip(steps, entries, strict=True)
    ]


def read_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of each entry of each metric in TensorBoard's files, in the order of writing. (They are
    read by name, which puts the tenth file of one second before its ninth.)"""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return scalars_of(events)


def scalars_of(events: EventAccumulator) -> dict[str, list[tuple[int, float]]]:
    """The same of files that have been read."""
    return {
        tag: [(e.step, e.value) for e in sorted(events.Scalars(tag), key=lambda entry: entry.wall_time)]
        for tag in events.Tags()["scalars"]
    }
