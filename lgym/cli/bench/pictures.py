"""Learning curves of records, over turns."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from lgym.cli.bench.records import PLAYED, RunRecord
from lgym.cli.bench.tables import metric_of
from lgym.cli.run_metrics import Curve

SAMPLED, ROLLOUTS = "tab:blue", "tab:gray"
POINTS = 200


def learning_curves(seeds: Sequence[RunRecord]) -> Figure:
    """The runs of a YAML: each seed's evaluations as a thin line, their mean as a thick one, rollouts in
    gray, and known policies as dotted lines."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    metric = metric_of(seeds, "sampled")
    for number, record in enumerate(seeds):
        label = None if number else "rollouts"
        axes.plot(*_columns(record.curves.get(PLAYED, [])), color=ROLLOUTS, alpha=0.3, lw=0.8, label=label)
        axes.plot(*_columns(record.curves.get(metric, [])), ".-", color=SAMPLED, alpha=0.4, lw=0.8, ms=3)
    of_seeds = f", mean of {len(seeds)}" if len(seeds) > 1 else ""
    axes.plot(*mean_curve([record.curves.get(metric, []) for record in seeds]), color=SAMPLED, lw=2.2,
              label=f"{metric}{of_seeds}")  # fmt: skip
    for name, value in seeds[0].subject["reference_returns"].items():
        axes.axhline(value, color="black", ls=":", lw=0.8)
        axes.annotate(
            name, (1, value), xycoords=("axes fraction", "data"), fontsize=7, va="bottom", ha="right"
        )
    axes.set(xlabel="turns", ylabel="return", title=seeds[0].name)
    axes.legend(fontsize=7, loc="best")
    return figure


def mean_curve(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """The mean of curves where all of them are known, each a straight line between its points."""
    if not all(curves):
        return np.empty(0), np.empty(0)
    start, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    turns = np.linspace(start, end, POINTS)
    return turns, np.mean([np.interp(turns, *_columns(curve)) for curve in curves], axis=0)


def draw(seeds: Sequence[RunRecord], folder: Path) -> Path:
    """Writes the picture of a YAML's runs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{seeds[0].name}.png"
    learning_curves(seeds).savefig(file, dpi=100, metadata={"Software": None})
    return file


def _columns(curve: Curve) -> tuple[list[float], list[float]]:
    return [turns for turns, _ in curve], [value for _, value in curve]
