"""Writes a table of finished runs from their own records: TensorBoard's files and config.yaml.

    python scripts/results_table.py docs/first_tries.md runs/acrobot/version_0 [MORE_RUNS ...]

A run's row replaces that of the same environment and seed, or comes behind those of its environment; other
rows, and the text around the table, stay. Returns are those of
evaluations: sampled, and greedy, before the first step and at the end, and the best sampled one. What was
learned was held where the rollouts of the last third return about as much as the best one. Minutes are those
between the first and the last entry of a run's record.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

BEGIN, END = "<!-- table: written by scripts/results_table.py -->", "<!-- end of the table -->"
Row = tuple[str, ...]
KEY = 2  # columns that tell rows apart: environment and seed
HEADER = (
    "environment",
    "seed",
    "minutes",
    "rollouts",
    "steps",
    "sampled, at the start",
    "sampled, best",
    "sampled, at the end",
    "greedy, at the end",
    "best rollout",
    "rollouts of the last third",
)


def scalars(run: Path) -> dict[str, list[tuple[float, float]]]:
    """Time and value of each entry of each metric."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(entry.wall_time, entry.value) for entry in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def row(run: Path) -> Row:
    """A run as a row of the table."""
    metrics = scalars(run)
    for tag in ("rollout/total_turns", "rollout/return_mean", "val_sampled/return_mean"):
        if tag not in metrics:
            raise SystemExit(f"{run} has no metric {tag}; give the folder of a run of `fit`.")
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    kwargs = "".join(f", {name}: {value}" for name, value in (config["data"]["env_kwargs"] or {}).items())
    times = [time for entries in metrics.values() for time, _ in entries]
    turns = metrics["rollout/total_turns"]
    sampled = [value for _, value in metrics["val_sampled/return_mean"]]
    greedy = [value for _, value in metrics["val_greedy/return_mean"]]
    rollouts = [value for _, value in metrics["rollout/return_mean"]]
    return (
        f"`{config['data']['env']}`{kwargs}",
        str(config["seed_everything"]),
        f"{(max(times) - min(times)) / 60:.1f}",
        str(len(turns)),
        f"{turns[-1][1]:,.0f}",
        f"{sampled[0]:.2f}",
        f"{max(sampled):.2f}",
        f"{sampled[-1]:.2f}",
        f"{greedy[-1]:.2f}",
        f"{max(rollouts):.2f}",
        f"{fmean(rollouts[-max(1, len(rollouts) // 3) :]):.2f}",
    )


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Old rows with new ones in the place of those of the same environment and seed, or behind those of their
    environment, or at the end."""
    rows = list(old)
    for cells in new:
        same = [place for place, other in enumerate(rows) if other[:KEY] == cells[:KEY]]
        related = [place for place, other in enumerate(rows) if other[0] == cells[0]]
        start = same[0] if same else related[-1] + 1 if related else len(rows)
        rows[start : start + len(same)] = [cells]
    return rows


def table(rows: Sequence[Row]) -> str:
    """Rows as Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [HEADER, ("---",) * len(HEADER), *rows])


def written(text: str) -> list[Row]:
    """The rows of the table between the marks of a text: none where it has no marks, or other columns."""
    if BEGIN not in text:
        return []
    lines = text.split(BEGIN, 1)[1].split(END, 1)[0].strip().splitlines()
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    return rows[2:] if rows and rows[0] == HEADER else []


def replaced(text: str, new: str) -> str:
    """A text with what stands between the marks replaced; where there are none, with it at the end."""
    if BEGIN not in text:
        return f"{text.rstrip()}\n\n{BEGIN}\n{new}\n{END}\n".lstrip()
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{new}\n{END}{rest.split(END, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="the Markdown file to write the table to")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    arguments = parser.parse_args()
    page: Path = arguments.page
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    rows = merged(written(text), list(map(row, arguments.runs)))
    page.write_text(replaced(text, table(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
