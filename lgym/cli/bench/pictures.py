"""Learning curves of records, over turns: a picture for each task."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lgym.cli.bench.records import LAID_OVER, PLAYED, RunRecord
from lgym.cli.bench.tables import groups, metric_of
from lgym.cli.run_metrics import Curve

SAMPLED, ROLLOUTS = "tab:blue", "tab:gray"


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
    _finish(axes, seeds[0], "return")
    return figure


def mean_curve(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """The mean of curves where all of them are known, each a straight line between its points."""
    if not all(curves):
        return np.empty(0), np.empty(0)
    start, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    turns = np.unique([turns for curve in curves for turns, _ in curve if start <= turns <= end])
    return turns, np.mean([np.interp(turns, *_columns(curve)) for curve in curves], axis=0)


def comparison(layers: Sequence[Sequence[RunRecord]]) -> Figure:
    """The runs of a task under several YAMLs that were laid over its own: of each the evaluations' mean over
    seeds, as a line, and each seed's end, as a point; turns are logarithmic, since one that learns from each
    again and again takes a hundredth of them."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    metric = metric_of([record for seeds in layers for record in seeds], "sampled")
    for number, seeds in enumerate(layers):
        curves = [record.curves.get(metric, []) for record in seeds]
        name = seeds[0].name.partition(LAID_OVER)[2] or seeds[0].name
        axes.plot(*mean_curve(curves), color=f"C{number}", lw=1.6, label=name)
        axes.plot(*_columns([curve[-1] for curve in curves if curve]), ".", color=f"C{number}", ms=5)
    axes.set_xscale("log")
    _finish(axes, layers[0][0], metric)
    return figure


def draw_all(records: Sequence[RunRecord], folder: Path) -> None:
    """Writes a picture for each task into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, runs in groupby(records, lambda record: record.task):
        layers = groups(list(runs))
        figure = learning_curves(layers[0]) if len(layers) == 1 else comparison(layers)
        figure.savefig(folder / f"{task}.png", dpi=100, metadata={"Software": None})


def _finish(axes: Axes, record: RunRecord, ylabel: str) -> None:
    """Known policies, names of axes, and the legend."""
    for name, value in record.subject["reference_returns"].items():
        axes.axhline(value, color="black", ls=":", lw=0.8)
        place = (1, value)
        axes.annotate(name, place, xycoords=("axes fraction", "data"), fontsize=7, va="bottom", ha="right")
    axes.set(xlabel="turns", ylabel=ylabel, title=record.task)
    axes.legend(fontsize=7, loc="best")


def _columns(curve: Curve) -> tuple[list[float], list[float]]:
    return [turns for turns, _ in curve], [value for _, value in curve]
