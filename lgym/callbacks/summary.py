"""The end of a run on the terminal: its result beside known policies, the places of its files, and the next
commands."""

import math
import shutil
import sys
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from lgym.callbacks.best_checkpoint import BestCheckpoint, rollouts_done
from lgym.callbacks.collapse_guard import CollapseGuard
from lgym.callbacks.last_checkpoint import last_checkpoint
from lgym.callbacks.time_limit import TimeLimit
from lgym.data import RolloutDataModule
from lgym.modules.evaluation import MODES
from lgym.terminal import say

SOLVED_GAMES = ("blackjack", "maze")
"""Games whose strategies are valued exactly, as their metrics are named."""

NOTED = ("return_mean", "return_ci95", "length_std", "looping_rate")
KEPT = "{} holds the run after its last whole rollout; --ckpt_path last goes on from there."
ALIKE = (
    "All greedy episodes had the same return and length. Where nothing is random but the policy they repeat "
    "one episode, and ± 0 is no certainty: the sampled mean says more."
)
LOOPING = (
    "{:.0%} of the greedy episodes went in circles until the time limit, with nothing new in their second "
    "half: the likeliest answers lead back to where they were given, and sampled ones lead on."
)
NOTHING_KEPT = "No rollout was finished, so there is no checkpoint yet."


class RunSummary(L.Callback):
    """Prints the result of `fit`, `validate` and `test` as a small table."""

    _evaluated_after = 0
    _started: float | None = None

    def __init__(self) -> None:
        self.before: dict[str, float] = {}  # metrics of the evaluation before the first step

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        trainer.num_sanity_val_steps = 0  # Lightning's check would come again where the checkpoint is whole

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = time.monotonic()
        data = trainer.datamodule  # type: ignore[attr-defined]
        episodes = getattr(data, "eval_episodes", "all")
        most = "" if getattr(data, "eval_ci", None) is None else "at most "
        say(
            f"Evaluating the policy before its first step: {most}{episodes} episodes in each mode, as in "
            "every evaluation (trainer.num_sanity_val_steps: 0 leaves it out)."
        )

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.before = dict(getattr(pl_module, "initial_evaluation", {}))
        returns = [
            f"{mode} {estimate(self.before, f'val_{mode}/return')}"
            for mode in MODES
            if f"val_{mode}/return_mean" in self.before
        ]
        say(f"Mean return at the start: {', '.join(returns)} ({time.monotonic() - self._began:.1f} s).")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.monotonic()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        rollouts = trainer.current_epoch
        if self._started is None:
            say(
                f"\nNothing was left to do after {rollouts} rollouts: more is up to trainer.max_epochs, or "
                "to the threshold that ended the run."
            )
        else:
            minutes = (time.monotonic() - self._started) / 60
            say(
                f"\nTrained {rollouts} rollouts, {trainer.global_step} optimizer steps; this session "
                f"{minutes:.1f} minutes."
            )
            callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
            guards = [callback for callback in callbacks if isinstance(callback, CollapseGuard)]
            if any(guard.rolled_back_after >= self._evaluated_after for guard in guards):
                say(
                    "The collapse guard went back to other weights after the last evaluation: "
                    "`lgym validate` evaluates them."
                )
            if trainer.global_step > 0 or not self.before:  # else the evaluation at the start has said it
                say(results_table(trainer, "val", self.before))
        for limit in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(limit, TimeLimit) and limit.is_over:
                say(f"Ended by trainer.max_time ({limit.duration}), which a run that goes on has anew.")
                say(_kept(trainer))
        say(_places(trainer))

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, KeyboardInterrupt):
            fitting = trainer.state.fn == "fit"
            say(f"\nInterrupted. {_kept(trainer)}" if fitting else "\nInterrupted before the end.")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._evaluated_after = 0 if trainer.sanity_checking else rollouts_done(trainer)
        if trainer.state.fn == "validate":
            say(results_table(trainer, "val"))

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        say(results_table(trainer, "test"))

    def state_dict(self) -> dict[str, Any]:
        return {"before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before = state_dict["before"]


def estimate(metrics: Mapping[str, float], name: str) -> str:
    """A mean return or a success rate with its 95 % interval."""
    if name.endswith("success"):
        return f"{metrics[f'{name}_rate']:.1%} ± {metrics[f'{name}_ci95']:.1%}"
    return f"{metrics[f'{name}_mean']:+.4f} ± {metrics[f'{name}_ci95']:.4f}"


def results_table(trainer: L.Trainer, stage: str, before: Mapping[str, float] | None = None) -> str:
    """Mean returns of the evaluated policy, `before` its first step too, and of other policies that the agent
    knows in its environment."""
    before = before or {}
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    rows = []
    for mode in MODES:
        name = f"{stage}_{mode}"
        if f"{name}/return_mean" in metrics:
            value = _change(before, metrics, f"{name}/return")
            rows.append((f"this policy, {mode}", value, f"{metrics[f'{name}/length_mean']:.1f} turns"))
        if f"{name}/success_rate" in metrics:
            rows.append((f"its success, {mode}", _change(before, metrics, f"{name}/success"), ""))
    for game, mode in product(SOLVED_GAMES, MODES):
        if f"{game}/value_{mode}" in metrics:
            agreement = f"{metrics[f'{game}/agreement']:.1%} optimal actions" if mode == "greedy" else ""
            rows.append((f"this policy, {mode}, exact", f"{metrics[f'{game}/value_{mode}']:+.4f}", agreement))
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, RolloutDataModule):
        agent = data.agents["test" if stage == "test" else "validate"]
        rows += [(name, f"{value:+.4f}", "") for name, value in agent.reference_returns().items()]
    if not rows:
        return "No evaluation was run: set trainer.limit_val_batches above 0, or run `lgym validate`."
    width, column = max(len(name) for name, _, _ in rows), max(18, *(len(value) for _, value, _ in rows))
    lines = [f"  {name:<{width}}  {value:<{column}}  {note}".rstrip() for name, value, note in rows]
    return "\n".join(["Mean return per episode:", *lines, *greedy_notes(metrics, stage)])


def greedy_notes(metrics: Mapping[str, float], stage: str) -> list[str]:
    """A sentence each where greedy episodes repeat one another, or themselves for less than sampled ones
    get."""
    greedy, sampled = (
        {name: metrics.get(f"{stage}_{mode}/{name}", math.nan) for name in NOTED} for mode in MODES
    )
    notes = []
    if greedy["return_ci95"] <= 1e-6 * abs(greedy["return_mean"]) and greedy["length_std"] == 0:
        notes.append(ALIKE)
    if greedy["looping_rate"] > 0 and greedy["return_mean"] < sampled["return_mean"]:
        notes.append(LOOPING.format(greedy["looping_rate"]))
    return notes


def _change(before: Mapping[str, float], after: Mapping[str, float], name: str) -> str:
    known = f"{name}_ci95" in before
    return f"{estimate(before, name)} → {estimate(after, name)}" if known else estimate(after, name)


def _kept(trainer: L.Trainer) -> str:
    path = last_checkpoint(trainer)
    return KEPT.format(_short(Path(path))) if path else NOTHING_KEPT


def _places(trainer: L.Trainer) -> str:
    folder = Path(trainer.log_dir or trainer.default_root_dir)
    path = last_checkpoint(trainer)
    lines = ["Where things are:"]
    if path:
        lines.append(f"  checkpoint  {_short(Path(path))}")
    for best in trainer.checkpoint_callbacks:
        if isinstance(best, BestCheckpoint) and best.score is not None:
            reached = f"{best.monitor} {best.score:+.4f} after rollout {best.rollouts}"
            lines.append(f"  best        {_short(Path(best.path))} ({reached}; --ckpt_path best)")
    if (folder / "adapter").is_dir():
        lines.append(f"  adapter     {_short(folder / 'adapter')}")
    lines += [
        f"  run         {_short(folder)}",
        "Next:",
    ]
    logs = [Path(log.log_dir) for log in trainer.loggers if isinstance(log, TensorBoardLogger)]
    lines += [f"  {_command('tensorboard')} --logdir {_short(log.parent)}" for log in logs]
    if path:
        options = f"--config {_short(folder / 'config.yaml')} --ckpt_path {_short(Path(path))}"
        lines += [f"  {_command('lgym')} {subcommand} {options}" for subcommand in ("test", "predict")]
    return "\n".join(lines)


def _command(name: str) -> str:
    """A program of this Python's environment: its name if the shell finds it, else its path."""
    program = Path(sys.executable).parent / name
    return (
        name if not program.exists() or shutil.which(name) == str(program) else _short(program, follow=False)
    )


def _short(path: Path, *, follow: bool = True) -> str:
    resolved = path.resolve() if follow else path
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)
