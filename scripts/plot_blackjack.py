"""Draws the README's picture: the exact value of Blackjack policies over training, from the logs of finished
runs.

    python scripts/plot_blackjack.py docs/blackjack.png runs/blackjack/version_0 [MORE_RUNS ...]

Reads TensorBoard's files only; the horizontal axis is the time since the first rollout was logged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.figure import Figure

from lgym.agents import BlackjackAgent
from lgym.cli.run_metrics import read_scalars

CURVES = (
    ("blackjack/value_sampled", "sampled", "-", "tab:blue"),
    ("blackjack/value_greedy", "greedy", ":", "tab:orange"),
)


def read(run: Path, tag: str) -> tuple[list[float], list[float]]:
    """Minutes and values of one metric of a run."""
    entries = read_scalars(run).get(tag)
    if not entries:
        raise SystemExit(
            f"{run} has no metric {tag}; give the folder of a Blackjack run, as runs/blackjack/version_0."
        )
    return [(entry.time - entries[0].time) / 60 for entry in entries], [entry.value for entry in entries]


def draw(runs: list[Path]) -> Figure:
    """All runs in one picture, with the known policies as lines."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for tag, label, style, color in CURVES:
        for number, run in enumerate(runs):
            axes.plot(*read(run, tag), style, color=color, alpha=0.8, label=label if number == 0 else None)
    for name, value in BlackjackAgent().reference_returns().items():
        if value > -0.3:
            axes.axhline(value, color="grey", linewidth=0.8)
            axes.text(axes.get_xlim()[1], value, f" {name} {value:+.3f}", va="center", fontsize=8)
    axes.set(
        xlabel="minutes since the first rollout", ylabel="exact expected return per hand", ylim=(-0.32, -0.03)
    )
    axes.set_title(
        f"SmolLM2-135M learning Blackjack from text, {len(runs)} seeds"
        if len(runs) > 1
        else "Blackjack from text"
    )
    axes.legend(loc="lower right")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument(
        "runs", type=Path, nargs="+", help="folders of runs, each with TensorBoard's files in it"
    )
    arguments = parser.parse_args()
    draw(arguments.runs).savefig(arguments.picture, dpi=110)


if __name__ == "__main__":
    main()
