"""Writes a table of what runs that went on when they had learned have held, from their own records:
TensorBoard's files, config.yaml and run.json.

    python scripts/held_table.py docs/results.md runs/cartpole/version_0 [MORE_RUNS ...]

A run's row replaces that of the same environment, seed and number of threads, or comes behind those of its
environment; other rows, and the text around the table, stay. Returns are those of rollouts. What was learned
was held where those of the last third return about as much as the best one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import yaml

from lgym.cli.run_metrics import read_scalars

Row = tuple[str, ...]
CLOSE = 0.95  # of the best, from which a rollout counts as one that had learned


class Table(NamedTuple):
    """A kind of table.

    Attributes:
        options: of the command that writes it, in the marks around it.
        header: the names of its columns.
        script: which writes it.
    """

    options: str
    header: Row
    script: str = "held_table.py"

    @property
    def marks(self) -> tuple[str, str]:
        """The lines around the table."""
        return (
            f"<!-- table: written by scripts/{self.script}{self.options} -->",
            f"<!-- end of the table{self.options} -->",
        )


class Run:
    """What a run recorded.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.metrics = read_scalars(folder)
        for tag in ("rollout/total_turns", "rollout/return_mean", "val_sampled/return_mean"):
            if tag not in self.metrics:
                raise SystemExit(f"{folder} has no metric {tag}; give the folder of a run of `fit`.")
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        kwargs = (config["data"]["env_kwargs"] or {}).items()
        self.env = f"`{config['data']['env']}`{''.join(f', {name}: {value}' for name, value in kwargs)}"
        self.seed = str(config["seed_everything"])
        self.machine = str(json.loads((folder / "run.json").read_text())["sessions"][-1]["machine"])

    def values(self, tag: str) -> list[float]:
        """A metric from entry to entry."""
        return [entry.value for entry in self.metrics[tag]]


def row(folder: Path) -> Row:
    """A run as a row of the table."""
    run = Run(folder)
    rollouts = run.values("rollout/return_mean")
    begun, best = rollouts[0], max(rollouts)
    learned = next(n for n, value in enumerate(rollouts) if value - begun >= CLOSE * (best - begun))
    processor, _, threads = run.machine.rpartition(", ")
    return (
        run.env,
        run.seed,
        threads,
        str(len(rollouts)),
        str(learned + 1),
        f"{best:.2f}",
        f"{min(rollouts[learned:]):.2f}",
        f"{fmean(last_third(rollouts)):.2f}",
        processor,
    )


def last_third(rollouts: Sequence[float]) -> Sequence[float]:
    """The last third of a run's rollouts, at least one."""
    return rollouts[-max(1, len(rollouts) // 3) :]


HELD = Table(
    "",
    (
        "environment",
        "seed",
        "threads",
        "rollouts",
        "95 % of the way after",
        "best rollout",
        "lowest from there on",
        "mean of the last third",
        "machine",
    ),
)
KEY = 3  # columns that tell rows apart, from the first on


def merged(old: Sequence[Row], new: Sequence[Row], key: int = KEY) -> list[Row]:
    """Old rows with new ones in the place of those that the first `key` columns do not tell apart, or behind
    those of their environment, or at the end."""
    rows = list(old)
    for cells in new:
        same = [place for place, other in enumerate(rows) if other[:key] == cells[:key]]
        related = [place for place, other in enumerate(rows) if other[0] == cells[0]]
        start = same[0] if same else related[-1] + 1 if related else len(rows)
        rows[start : start + len(same)] = [cells]
    return rows


def markdown(kind: Table, rows: Sequence[Row]) -> str:
    """Rows as Markdown."""
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in [kind.header, ("---",) * len(kind.header), *rows]
    )


def written(kind: Table, text: str) -> list[Row]:
    """The rows of the table between the marks of a text: none where it has no marks, or other columns."""
    begin, end = kind.marks
    if begin not in text:
        return []
    lines = text.split(begin, 1)[1].split(end, 1)[0].strip().splitlines()
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    return rows[2:] if rows and rows[0] == kind.header else []


def replaced(kind: Table, text: str, new: str) -> str:
    """A text with what stands between the marks replaced; where there are none, with it at the end."""
    begin, end = kind.marks
    if begin not in text:
        return f"{text.rstrip()}\n\n{begin}\n{new}\n{end}\n".lstrip()
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{new}\n{end}{rest.split(end, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="the Markdown file to write the table to")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    arguments = parser.parse_args()
    page: Path = arguments.page
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    rows = merged(written(HELD, text), list(map(row, arguments.runs)))
    page.write_text(replaced(HELD, text, markdown(HELD, rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
