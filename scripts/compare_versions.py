"""Seconds of a rollout by an earlier version of lgym and by this one, in turns on one machine.

    python scripts/compare_versions.py b895c8f --config configs/blackjack.yaml --trainer.max_epochs 3
    python scripts/compare_versions.py b895c8f --busy --repeat 6 --config configs/blackjack.yaml \
        --data.episodes_per_rollout 5000 --data.update_epochs 1 --trainer.max_epochs 3

Words that are not known here go to `lgym fit` of both versions, each of which reads its own files and is run
from its own folder. `--now` has words for this version alone. A run's first rollout warms up and is not
counted; a run counts by the medians of the others, and a version by the median of its runs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tqdm import tqdm

from lgym.cli.run_metrics import read_scalars

ROOT = Path(__file__).resolve().parent.parent
PHASES = {"playing": "time/rollout_seconds", "updating": "time/update_seconds"}
Seconds = dict[str, float]
"""Of a rollout, by what they were spent on."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


@contextmanager
def busy_core() -> Iterator[None]:
    """A process that never rests, as other programs on a machine in use, for as long as this one runs."""
    spin = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
    process = subprocess.Popen([sys.executable, "-c", spin])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def seconds(tree: Path, words: Sequence[str]) -> Seconds:
    """Medians over the rollouts of a run of `lgym fit`, without the first.

    Args:
        tree: the version's folder.
        words: of its command line.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lgym.cli", "fit", *words, "--trainer.default_root_dir", folder]
        run = subprocess.run(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if run.returncode:
            raise SystemExit(f"{shlex.join(command)}, in {tree}, ended with this:\n{run.stdout[-2000:]}")
        metrics = read_scalars(Path(folder) / "version_0")
        times = {phase: [entry.value for entry in metrics[tag]][1:] for phase, tag in PHASES.items()}
    if not all(times.values()):
        raise SystemExit("The run had one rollout, which is not counted; let it have two or more.")
    return {phase: statistics.median(values) for phase, values in times.items()}


def table(runs: dict[str, list[Seconds]]) -> str:
    """Medians, their range and their ratio, as Markdown.

    Args:
        runs: those of the earlier version, then those of this one.
    """
    lines = ["| seconds a rollout | " + " | ".join(runs) + " | ratio |", "|---|---|---|---|"]
    for phase in (*PHASES, "both"):
        columns = [
            sorted(sum(run.values()) if phase == "both" else run[phase] for run in version)
            for version in runs.values()
        ]
        medians = [statistics.median(column) for column in columns]
        cells = [
            f"{median:.1f} ({column[0]:.1f} to {column[-1]:.1f})"
            for median, column in zip(medians, columns, strict=True)
        ]
        lines.append(f"| {phase} | {' | '.join(cells)} | {medians[0] / medians[1]:.2f} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("commit", help="the earlier version: any name that git knows it by")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each version")
    parser.add_argument("--busy", action="store_true", help="keep one core busy meanwhile")
    parser.add_argument("--now", default="", help="words for this version alone, as one argument")
    arguments, words = parser.parse_known_args(argv)
    runs: dict[str, list[Seconds]] = {arguments.commit: [], "now": []}
    with checked_out(arguments.commit) as before, busy_core() if arguments.busy else nullcontext():
        for _ in tqdm(range(arguments.repeat), unit="round"):
            runs[arguments.commit].append(seconds(before, words))
            runs["now"].append(seconds(ROOT, [*words, *shlex.split(arguments.now)]))
    print(table(runs))


if __name__ == "__main__":
    main()
