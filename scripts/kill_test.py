"""Kills a training at random moments, resumes it, and compares its end with that of the run that nobody
killed.

    python scripts/kill_test.py --kills 20 --config configs/cartpole.yaml --trainer.max_epochs=3

Words that are not known here go to `lgym fit`. Every kill is a SIGKILL of a run of its own: while it plays,
while it learns, while it writes a checkpoint, and while it puts it in the place of the one before. With
several devices, it is any of the processes at any time. Ends with status 1 unless every run ends with the
same weights, optimizer, random states, environments and memories, bit for bit, and the same curves (but for
times).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from tqdm import tqdm

from lgym.cli import checkpoint_io
from lgym.cli import main as lgym
from lgym.cli.run_metrics import by_step, read_scalars
from lgym.cli.runs import find_checkpoint
from lgym.data.rollout.collector import Collector
from lgym.modules import LLMLearner

MOMENTS: dict[str, tuple[Any, str]] = {
    "playing": (Collector, "_step"),
    "learning": (LLMLearner, "training_step"),
    "writing": (os, "fsync"),
    "replacing": (checkpoint_io, "_keep"),
}
"""What a run is doing, and the function that it is then in."""

THREADS = torch.get_num_threads()
"""Threads of a run. The process that forks it computes with one: in a copy of a process that has computed
with several, OpenMP waits for threads that the copy lacks, for ever."""

COMPARED = (
    "state_dict",
    "optimizer_states",
    "lr_schedulers",
    "RolloutDataModule",
    "lgym",
    "epoch",
    "global_step",
)
"""Of a checkpoint; the rest is where files are."""


def counted(counts: Counter[str], moment: str | None, at: int) -> None:
    """Counts the calls of every moment's function, and kills this process within the one that is asked
    for."""

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            if name == moment and counts[name] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name, (owner, function) in MOMENTS.items():
        setattr(owner, function, wrap(name, getattr(owner, function)))


def _fit(words: Sequence[str], root: Path, moment: str | None, at: int) -> None:
    with (root.parent / f"{root.name}.log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    torch.set_num_threads(THREADS)
    counts: Counter[str] = Counter()
    counted(counts, moment, at)
    lgym(fitting(words, root))
    (root / "counts.json").write_text(json.dumps(counts))


def fitting(words: Sequence[str], root: Path) -> list[str]:
    return [
        "fit",
        *words,
        f"--trainer.default_root_dir={root}",
        "--trainer.enable_progress_bar=false",
        "--ckpt_path=auto",
    ]


def fit(words: Sequence[str], root: Path, moment: str | None = None, at: int = 0) -> int:
    """A training in a process of its own; its exit status, which is negative where it was killed."""
    process = multiprocessing.get_context("fork").Process(target=_fit, args=(words, root, moment, at))
    process.start()
    process.join()
    return process.exitcode or 0


def fit_in_several(words: Sequence[str], root: Path, kill_after: float | None, rng: random.Random) -> int:
    """The same with several processes, one of which is killed after so many seconds."""
    with (root.parent / f"{root.name}.log").open("a") as log:
        command = [sys.executable, "-m", "lgym.cli", *fitting(words, root)]
        run = subprocess.Popen(command, stdout=log, stderr=log)
        if kill_after is not None:
            time.sleep(kill_after)
            if run.poll() is None:
                ranks = [p for p in psutil.Process(run.pid).children() if p.is_running()]
                rng.choice([psutil.Process(run.pid), *ranks]).kill()
        return run.wait()


def differences(whole: Path, other: Path) -> list[str]:
    """What is not the same at the end of two runs. One killed before it had a checkpoint has begun another
    version."""
    return differing(*({"curves": _curves(root), **_checkpoint(root)} for root in (whole, other)))


def differing(one: Any, other: Any) -> list[str]:
    """The paths of the leaves of nested dicts and lists that only one of the two has, or that are not equal
    bit for bit."""
    ours, theirs = dict(_leaves(one)), dict(_leaves(other))
    unequal = [name for name in ours.keys() & theirs.keys() if not _same(ours[name], theirs[name])]
    return sorted(ours.keys() ^ theirs.keys()) + sorted(unequal)


def _last(root: Path) -> Path:
    checkpoint = find_checkpoint("last", root)
    assert checkpoint is not None
    return checkpoint


def _checkpoint(root: Path) -> dict[str, Any]:
    saved = torch.load(_last(root), weights_only=True)
    return {part: saved[part] for part in COMPARED if part in saved}


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list | tuple)
        else None
    )
    if items is None:
        yield name, value
        return
    for key, inner in items:
        yield from _leaves(inner, f"{name}/{key}")


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def _curves(root: Path) -> dict[str, dict[int, str]]:
    """Every metric but times by step; of a step that was logged twice, the later value."""
    metrics = read_scalars(_last(root).parent.parent)
    return {
        tag: {step: str(value) for step, value in by_step(entries).items()}
        for tag, entries in metrics.items()
        if not tag.startswith("time/")
    }


def kill_and_compare(
    words: Sequence[str], kills: int, seed: int, root: Path, *, devices: int = 1
) -> list[dict[str, Any]]:
    """A row a kill: the moment, whether the run died of it, and what then differed from the run that nobody
    killed."""
    root.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    whole, started = root / "whole", time.monotonic()
    status = fit(words, whole) if devices == 1 else fit_in_several(words, whole, None, rng)
    if status:
        raise RuntimeError(f"The run that nobody kills ended with status {status}; see {whole}.log.")
    seconds = time.monotonic() - started
    rows = []
    for number in tqdm(range(kills), desc="kills", disable=None):
        killed = root / f"killed_{number}"
        if devices == 1:
            counts = json.loads((whole / "counts.json").read_text())
            moment = [name for name in MOMENTS if counts.get(name)][number % sum(map(bool, counts.values()))]
            at = rng.randint(1, counts[moment])
            when = f"{moment}, call {at} of {counts[moment]}"
            died = fit(words, killed, moment, at) == -signal.SIGKILL
            resumed = fit(words, killed)
        else:
            after = rng.uniform(0.3, 0.97) * seconds
            when = f"after {after:.1f} of {seconds:.1f} s"
            died = fit_in_several(words, killed, after, rng) != 0
            resumed = fit_in_several(words, killed, None, rng)
        differing = [f"resuming ended with status {resumed}"] if resumed else differences(whole, killed)
        rows.append({"moment": when, "died": died, "differing": differing})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="how many runs to kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument(
        "--devices", type=int, default=1, help="processes of each run; the same as trainer.devices"
    )
    parser.add_argument("--root", type=Path, help="where runs are written; by default a temporary folder")
    settings, words = parser.parse_known_args()
    torch.set_num_threads(1)
    root = settings.root or Path(tempfile.mkdtemp(prefix="kills-"))
    words = [*words, f"--trainer.devices={settings.devices}"]
    rows = kill_and_compare(words, settings.kills, settings.seed, root, devices=settings.devices)
    for row in rows:
        result = "equal" if not row["differing"] else "differs: " + ", ".join(row["differing"][:5])
        print(f"{row['moment']:<40} {'killed' if row['died'] else 'was over'}  {result}")
    equal = sum(not row["differing"] for row in rows)
    died = sum(row["died"] for row in rows)
    print(f"{equal} of {len(rows)} equal, {died} of them killed. The runs lie in {root}.")
    return 0 if equal == len(rows) and died else 1


if __name__ == "__main__":
    sys.exit(main())
