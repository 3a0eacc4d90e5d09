"""A finished run in figures: what its folder says, as a small JSON file that outlives the folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from lgym.callbacks.provenance import RUN_FILE
from lgym.cli.run_metrics import TURNS, Curve, by_step, over_turns, read_scalars
from lgym.types import ConfigError

EVALUATED = (
    "val_sampled/return_mean",
    "val_greedy/return_mean",
    "val_sampled/success_rate",
    "val_greedy/success_rate",
    "blackjack/value_sampled",
    "blackjack/value_greedy",
    "maze/value_sampled",
    "maze/value_greedy",
)
"""Metrics that are kept as curves, beside that of rollouts."""

PLAYED = "rollout/return_mean"
LAID_OVER = "+"
"""Between the names of a YAML and of what is laid over it."""

SPENT = ("time/rollout_seconds", "time/preparation_seconds", "time/update_seconds", "time/evaluation_seconds")


@dataclass(frozen=True)
class RunRecord:
    """A run, with everything that the tables and pictures say of it."""

    name: str
    """That of its YAML, with that of what is laid over it: `maze`, or `maze+a2c`."""

    seed: int
    subject: dict[str, Any]
    """The algorithm, policy, model and environment, and the returns of known policies there."""

    command: str
    commit: str | None
    machine: str
    versions: dict[str, str]
    minutes: float
    """Minutes of playing, learning and evaluating, in all its sessions, without the start of the program."""

    rollouts: int
    turns: int
    curves: dict[str, Curve]
    """By metric, over turns. An evaluation before the first step is at 0."""

    @property
    def task(self) -> str:
        """The YAML's name alone."""
        return self.name.partition(LAID_OVER)[0]

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.seed}.json"

    def last(self, metric: str) -> float | None:
        """The metric's last value."""
        return self.curves[metric][-1][1] if self.curves.get(metric) else None

    def first(self, metric: str) -> float | None:
        """The metric's value before the first step."""
        return next((value for turns, value in self.curves.get(metric, ()) if turns == 0), None)


def record_of(run: Path, name: str) -> RunRecord:
    """The record of a run's folder.

    Raises:
        ConfigError: if it is none of a run of `fit` with TensorBoard's files.
    """
    if not (run / RUN_FILE).exists():
        raise ConfigError(f"{run} has no {RUN_FILE}: give the folder of a run of `lgym fit`.")
    subject = json.loads((run / RUN_FILE).read_text(encoding="utf-8"))
    newest = subject.pop("sessions")[-1]
    del subject["finished"]
    metrics = read_scalars(run)
    if TURNS not in metrics:
        raise ConfigError(f"{run} has no metrics of a rollout in TensorBoard's files: was one finished?")
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    turns = by_step(metrics[TURNS])
    return RunRecord(
        name=name,
        seed=int(config["seed_everything"]),
        subject=subject,
        command=newest["command"],
        commit=newest["commit"],
        machine=newest["machine"],
        versions=newest["versions"],
        minutes=round(sum(entry.value for tag in SPENT for entry in metrics.get(tag, ())) / 60, 1),
        rollouts=len(turns),
        turns=int(max(turns.values())),
        curves={tag: over_turns(metrics[tag], turns) for tag in (*EVALUATED, PLAYED) if tag in metrics},
    )


def write(record: RunRecord, folder: Path) -> Path:
    """Writes a record into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / record.file_name
    file.write_text(json.dumps(asdict(record), separators=(",", ":")) + "\n", encoding="utf-8")
    return file


def read_all(folder: Path) -> list[RunRecord]:
    """The records of a folder, by task, name and seed."""
    records = []
    for file in folder.glob("*.json"):
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
            fields["curves"] = {tag: [tuple(p) for p in curve] for tag, curve in fields["curves"].items()}
            records.append(RunRecord(**fields))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{file} is no record of a run ({error}): remove it, or run it again."
            ) from error
    return sorted(records, key=lambda record: (record.task, record.name, record.seed))
