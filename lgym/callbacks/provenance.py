"""Provenance of a run: its code, versions and machine, in its folder."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lightning as L
import torch

from lgym.callbacks.summary import RunSummary
from lgym.data import RolloutDataModule
from lgym.modules import LLMLearner

RUN_FILE = "run.json"
EVALUATIONS = ("val_", "blackjack/", "maze/")
"""Beginnings of the names of results."""

DOCUMENTS = ("docs", "*.md")
"""Files that no run reads: `lgym bench` writes there, between one run and the next."""

PACKAGES = ("lgym", "torch", "transformers", "peft", "lightning", "gymnasium")


class Provenance(L.Callback):
    """Writes `run.json` into the folder of a run of `fit`: what was run, the returns of known policies, and a
    session for each start, with its command, commit, versions and machine. A session that comes to its end
    adds `finished` and the results: the evaluations before the first step and at the end. One that had
    nothing left to do leaves them as they are."""

    _has_trained = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        file = _file(trainer)
        if not trainer.is_global_zero or not isinstance(pl_module, LLMLearner):
            return
        known = read_run(file.parent)
        sessions = [*known.get("sessions", []), session(trainer)]
        _write(file, {"finished": False, **known, **subject(trainer, pl_module), "sessions": sessions})

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._has_trained = True
        self._add(trainer, pl_module, {"finished": False})

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._has_trained and isinstance(pl_module, LLMLearner):
            self._add(trainer, pl_module, {**outcome(trainer, pl_module), "finished": True})

    def _add(self, trainer: L.Trainer, pl_module: L.LightningModule, known: Mapping[str, Any]) -> None:
        file = _file(trainer)
        if trainer.is_global_zero and isinstance(pl_module, LLMLearner) and file.exists():
            _write(file, {**read_run(file.parent), **known})


def read_run(folder: Path) -> dict[str, Any]:
    """The record in a run's folder; empty where it has no `run.json`."""
    file = folder / RUN_FILE
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return known


def was_finished(trainer: L.Trainer) -> bool:
    """True if the run came to its end in an earlier session; the same on all devices."""
    known = read_run(_file(trainer).parent) if trainer.is_global_zero else {}
    return bool(trainer.strategy.broadcast(known.get("finished", False)))


def subject(trainer: L.Trainer, module: LLMLearner) -> dict[str, Any]:
    """Algorithm (SFT where no rollout goes on to reinforcement learning), policy, model and environment, and
    the returns of known policies there."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    is_ours = isinstance(data, RolloutDataModule)
    only_imitates = trainer.max_epochs is not None and 0 < trainer.max_epochs <= module.sft_rollouts
    return {
        "algorithm": "SFT" if only_imitates else type(module).__name__,
        "policy": type(module.policy).__name__,
        "model": Path(module.llm_config.model).name,
        "env": data.env if is_ours else "",
        "env_kwargs": dict(data.env_kwargs or {}) if is_ours else {},
        "system_prompt": data.agents["validate"].system_prompt if is_ours else "",
        "eval_episodes": data.eval_episodes if is_ours else 0,
        "reference_returns": dict(data.agents["validate"].reference_returns()) if is_ours else {},
    }


def outcome(trainer: L.Trainer, module: LLMLearner) -> dict[str, Any]:
    """The results of a session that came to its end."""
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    summaries = [c for c in trainer.callbacks if isinstance(c, RunSummary)]  # type: ignore[attr-defined]
    return {
        "rollouts": trainer.current_epoch,
        "turns": int(module.rollout_metrics.get("rollout/total_turns", 0)),
        "initial_results": next((dict(summary.before) for summary in summaries), {}),
        "results": {name: value for name, value in metrics.items() if name.startswith(EVALUATIONS)},
    }


def session(trainer: L.Trainer) -> dict[str, Any]:
    """Time, command, commit, versions and machine of a start."""
    return {
        "begun": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["lgym", *sys.argv[1:]]),
        "commit": commit(Path(__file__).parent),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": machine(trainer.strategy.root_device, trainer.world_size),
    }


def commit(folder: Path) -> str | None:
    """The commit that a folder's repository stands at, with a plus where files differ from it, its documents
    left out; `None` where lgym is no checkout."""
    known = _git(folder, "rev-parse", "--short=9", "HEAD")
    if known is None or known.returncode != 0:
        return None
    differs = _git(
        folder, "diff", "--quiet", "HEAD", "--", ":(top)", *(f":(top,exclude){d}" for d in DOCUMENTS)
    )
    return known.stdout.strip() + ("+" if differs is None or differs.returncode != 0 else "")


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str] | None:
    """Answer of git; `None` where there is none."""
    try:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None


def machine(device: torch.device, processes: int) -> str:
    """The kind of machine, such as `AMD EPYC, 2 cores, 1 thread`."""
    if device.type == "cuda":
        return f"{processes} x {torch.cuda.get_device_name(device)}"
    counts = [_counted(core_count(), "core"), _counted(torch.get_num_threads(), "thread")]
    if processes > 1:
        counts.append(f"{processes} processes")
    return ", ".join([_processor() if device.type == "cpu" else device.type, *counts])


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")  # of Linux
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue  # lgym is run from its source
    return versions


def _file(trainer: L.Trainer) -> Path:
    return Path(trainer.log_dir or trainer.default_root_dir) / RUN_FILE  # every process has to ask


def _write(file: Path, record: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.new")
    new.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    new.replace(file)  # a run that is killed leaves the whole of one or of the other
