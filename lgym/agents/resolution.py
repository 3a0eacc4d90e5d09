"""Steps to round numbers to, chosen so that few distinct texts occur."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lgym.agents.observation_formatter import ObservationFormatter

FINEST = 200  # steps in the range of the observed values


def choose_resolutions(
    formatter: ObservationFormatter, observations: Sequence[Any], max_texts: int
) -> dict[str, float]:
    """Choose steps of the series 1, 2, 5, 10, ... with which observations have few distinct texts.

    The steps are the same fraction of the range of each number, and then each is made one finer where that
    still gives no more texts. With the largest ones every number reads 0: if other parts alone make too many
    texts, those are chosen.

    Args:
        formatter: of their space, without a resolution.
        observations: of play, such as some thousands of random turns.
        max_texts: the most distinct texts that they should have.

    Returns:
        The `resolution` by label; empty where there are few texts without any. A number that never changes
        has none.
    """
    if len({formatter(observation) for observation in observations}) <= max_texts:
        return {}
    rows = [formatter.numbers(observation) for observation in observations]
    values = {label: np.array([row[label] for row in rows]) for label in rows[0]}
    spans = {label: _span(column) for label, column in values.items()}
    labels = [label for label, span in spans.items() if span > 0]
    if not labels:
        return {}
    rest = _other_texts(formatter, observations, labels)
    columns = np.stack([values[label] for label in labels], axis=1)
    finest = np.array([math.ceil(3 * math.log10(spans[label] / FINEST)) for label in labels])

    def texts(numbers: np.ndarray) -> int:
        rounded = np.rint(columns / np.array([step(number) for number in numbers]))
        return len(np.unique(np.concatenate([rest[:, None], rounded], axis=1), axis=0))

    coarsest = max(
        3 * math.log10(4 * np.abs(column[np.isfinite(column)]).max()) - first
        for column, first in zip(columns.T, finest, strict=True)
    )
    shifts = range(math.ceil(coarsest) + 2)
    numbers = finest + next((n for n in shifts if texts(finest + n) <= max_texts), shifts[-1])
    for place in range(len(labels)):
        finer = numbers - np.eye(len(labels), dtype=int)[place]
        if texts(finer) <= max_texts:
            numbers = finer
    return {label: step(number) for label, number in zip(labels, numbers, strict=True)}


def step(number: int) -> float:
    """A member of the series ..., 0.1, 0.2, 0.5, 1, 2, 5, 10, ...; 1 is number 0."""
    return float(f"{(1, 2, 5)[number % 3]}e{number // 3}")


def _span(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.ptp(finite)) if finite.size else 0.0


def _other_texts(
    formatter: ObservationFormatter, observations: Sequence[Any], labels: Sequence[str]
) -> np.ndarray:
    """A number for each observation's text without these numbers: equal ones for equal texts."""
    settings = replace(formatter.settings, decimals=None, resolution=dict.fromkeys(labels, 1e300))
    blank = ObservationFormatter(formatter.space, settings, formatter.readers)
    return np.unique([blank(observation) for observation in observations], return_inverse=True)[1]
