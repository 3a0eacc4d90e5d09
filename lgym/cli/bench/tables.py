"""Tables of records, in Markdown."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

import torch

from lgym.cli.bench.records import RunRecord
from lgym.functional import bootstrap_interval, interquartile_mean
from lgym.types import ConfigError

BEGIN, END = "<!-- table: written by lgym bench -->", "<!-- end of the table -->"
MARKS = re.compile(
    r"<!-- table: written by lgym bench(?:: (?P<columns>[^\n]*?))? -->\n.*?" + re.escape(END), re.DOTALL
)
"""The table and the lines around it, the first of which may name its columns."""

NEW_PAGE = f"# Results\n\n{BEGIN}\n{END}\n"  # where there is none yet
HEADER = (
    "YAML",
    "environment",
    "algorithm",
    "seeds",
    "untrained",
    "sampled",
    "greedy",
    "random",
    "optimal",
    "turns",
    "minutes",
    "machine",
    "commit",
)
"""Columns of a page that names none."""

SPEED = ("bar", "seeds at the bar", "median minutes")
BAR = 0.95
"""Share of the way from random to optimal play that is the bar of a task."""

SUCCESS = {"sampled": "val_sampled/success_rate", "greedy": "val_greedy/success_rate"}
EXACT = ("blackjack", "maze")
UNTRAINED = "val_sampled/return_mean"


def groups(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """The seeds of each YAML together."""
    return [list(seeds) for _, seeds in groupby(records, lambda record: record.name)]


def metric_of(seeds: Sequence[RunRecord], mode: str) -> str:
    """The metric that says most of a mode, sampled or greedy: the exact value where there is one, else the
    mean return."""
    exact = [f"{game}/value_{mode}" for game in EXACT]
    known = set.intersection(*(set(record.curves) for record in seeds))
    return next((metric for metric in exact if metric in known), f"val_{mode}/return_mean")


def row(seeds: Sequence[RunRecord]) -> dict[str, str]:
    """The runs of a YAML, by column."""
    first = seeds[0]
    subject = first.subject
    returns = subject["reference_returns"]
    minutes = [record.minutes for record in seeds]
    return {
        "YAML": f"`{first.name}`",
        "environment": _distinct(map(environment, seeds)),
        "algorithm": f"{subject['algorithm']}, {subject['policy']}",
        "seeds": ", ".join(str(record.seed) for record in seeds),
        "untrained": estimate(seeds, UNTRAINED, RunRecord.first),
        "sampled": result(seeds, "sampled"),
        "greedy": result(seeds, "greedy"),
        "random": number(returns["random"]) if "random" in returns else "",
        "optimal": number(returns["optimal"]) if "optimal" in returns else "",
        "turns": _span([record.turns for record in seeds], "{:,}"),
        "minutes": _span(minutes, "{:.1f}"),
        "machine": _distinct(record.machine for record in seeds),
        "commit": _distinct(record.commit or "" for record in seeds),
        "median minutes": f"{statistics.median(minutes):.1f}",
        **speed(seeds),
    }


def environment(record: RunRecord) -> str:
    """The environment of a run, with its keyword arguments."""
    settings = record.subject["env_kwargs"].items()
    return record.subject["env"] + "".join(f", {name}: {value}" for name, value in settings)


def speed(seeds: Sequence[RunRecord]) -> dict[str, str]:
    """The bar of a task whose random and optimal returns are known, and how many seeds end at it or above,
    by their sampled returns."""
    returns = seeds[0].subject["reference_returns"]
    if not {"random", "optimal"} <= set(returns):
        return {"bar": "", "seeds at the bar": ""}
    bar = returns["random"] + BAR * (returns["optimal"] - returns["random"])
    metric = metric_of(seeds, "sampled")
    ends = [record.last(metric) for record in seeds]
    reached = sum(end is not None and end >= bar for end in ends)
    return {"bar": number(bar), "seeds at the bar": f"{reached} of {len(seeds)}"}


def result(seeds: Sequence[RunRecord], mode: str) -> str:
    """The last returns of a mode, and the success rates where somebody says so."""
    returns = estimate(seeds, metric_of(seeds, mode), RunRecord.last)
    rates = estimate(seeds, SUCCESS[mode], RunRecord.last, "{:.1%}")
    return f"{returns}; {rates} succeed" if rates else returns


def estimate(
    seeds: Sequence[RunRecord],
    metric: str,
    value_of: Callable[[RunRecord, str], float | None],
    form: str | None = None,
) -> str:
    """The interquartile mean of a metric over seeds, with its 95 % bootstrap interval where there are
    several; empty where a run lacks it."""
    values = [value_of(record, metric) for record in seeds]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return ""
    scores = torch.tensor(known, dtype=torch.float64)

    def said(value: float) -> str:
        return number(value) if form is None else form.format(value)

    mean = said(float(interquartile_mean(scores)))
    if len(known) == 1:
        return mean
    low, high = bootstrap_interval(scores)
    return f"{mean} [{said(low)}, {said(high)}]"


def number(value: float) -> str:
    """A return, with three digits or more, as are of interest."""
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def table(records: Sequence[RunRecord], columns: Sequence[str] = HEADER) -> str:
    """A row for each YAML."""
    rows = [columns, ["---"] * len(columns)]
    rows += [[cells[column] for column in columns] for cells in map(row, groups(records))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def with_table(page: str, records: Sequence[RunRecord], where: Path) -> str:
    """A page with the table of records between its marks.

    Raises:
        ConfigError: if it has no marks, or these name a column that does not exist.
    """
    found = MARKS.search(page)
    if found is None:
        raise ConfigError(f"{where} has no place for the table: write {BEGIN} and {END} where it belongs.")
    columns = HEADER if found["columns"] is None else found["columns"].split(", ")
    unknown = [column for column in columns if column not in HEADER + SPEED]
    if unknown:
        raise ConfigError(
            f"{where} asks for a column {unknown[0]!r} in the mark of its table; "
            f"there are {', '.join(HEADER + SPEED)}."
        )
    begin = found[0].partition("\n")[0]
    return f"{page[: found.start()]}{begin}\n{table(records, columns)}\n{END}{page[found.end() :]}"


def _span(values: Sequence[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))
