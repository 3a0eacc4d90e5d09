"""A long training whose workers are killed, one every so often, and the account of its episodes at the end.

    python scripts/soak.py --seconds 3600 --every 60 --config configs/cartpole.yaml --data.num_envs 4

Words that are not known here go to `lgym fit`. It ends with status 1 unless some worker was killed and played
= finished + dropped + under way, both as the run's checkpoint counts them and as its logs add up, rollout by
rollout.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch

from lgym.cli import main as lgym
from lgym.cli.run_metrics import read_scalars

START = 20.0
"""Seconds before the first kill, in which the model is loaded; from then on memory and handles are
compared."""


class Killer(threading.Thread):
    """Kills a worker every so often, and looks at what the main process holds."""

    def __init__(self, every: float) -> None:
        super().__init__(daemon=True)
        self.every = every
        self.kills = 0
        self.held: list[dict[str, float]] = []

    def run(self) -> None:
        time.sleep(START)
        while True:
            workers = multiprocessing.active_children()
            if workers:
                with suppress(
                    ProcessLookupError, psutil.NoSuchProcess
                ):  # it may end between two of these lines
                    self.held.append(held())
                    os.kill(random.choice(workers).pid or 0, signal.SIGKILL)
                    self.kills += 1
            time.sleep(self.every)


def held() -> dict[str, float]:
    """What this process and its workers hold now."""
    process = psutil.Process()
    below = process.children(recursive=True)
    return {
        "memory MB": round(process.memory_info().rss / 1e6),
        "memory below MB": round(sum(child.memory_info().rss for child in below if child.is_running()) / 1e6),
        "file handles": process.num_fds(),
        "threads": process.num_threads(),
        "processes below": len(below),
    }


def account(root: Path) -> dict[str, Any]:
    """The episodes of the run, as its checkpoint counts them and as its logs add up."""
    state = torch.load(root / "version_0" / "checkpoints" / "last.ckpt", weights_only=True)[
        "RolloutDataModule"
    ]["ranks"][0]["collector"]
    metrics = read_scalars(root / "version_0")
    logged = {
        name: round(sum(entry.value for entry in metrics[f"rollout/{name}"]))
        for name in ("episodes", "episodes_dropped")
    }
    return {
        **state["counts"],
        "under way": sum(runner is not None for runner in state["runners"]),
        "finished, by the logs": logged["episodes"],
        "dropped, by the logs": logged["episodes_dropped"],
        "rollouts": len(metrics["rollout/episodes"]),
    }


def adds_up(found: dict[str, Any]) -> bool:
    return (
        found["played"] == found["finished"] + found["dropped"] + found["under way"]
        and found["finished"] == found["finished, by the logs"]
        and found["dropped"] == found["dropped, by the logs"]
    )


def _days_to_seconds(time: timedelta) -> str:
    """As `max_time` is written."""
    minutes, seconds = divmod(time.seconds, 60)
    return f"{time.days:02}:{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long to train")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--root", type=Path, help="where the run is written; by default a temporary folder")
    settings, words = parser.parse_known_args()
    root = settings.root or Path(tempfile.mkdtemp(prefix="soak-"))
    killer = Killer(settings.every)
    killer.start()
    sys.argv = [
        "lgym",
        "fit",
        *words,
        "--data.subprocess_envs=true",
        "--trainer.max_epochs=-1",
        f"--trainer.max_time={_days_to_seconds(timedelta(seconds=settings.seconds))}",
        f"--trainer.default_root_dir={root}",
    ]
    lgym()
    found = account(root)
    report = {
        "episodes": found,
        "kills": killer.kills,
        "at the first kill": killer.held[0] if killer.held else None,
        "at the last kill": killer.held[-1] if killer.held else None,
        "after the run": held(),
        "adds up": adds_up(found),
    }
    print(json.dumps(report, indent=2))
    return 0 if adds_up(found) and killer.kills > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
