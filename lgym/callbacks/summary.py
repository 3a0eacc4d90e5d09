"""The end of a run on the terminal: its result beside known policies, the places of its files, and the next
commands."""

import math
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import lightning as L

from lgym.callbacks.collapse_guard import CollapseGuard
from lgym.data import RolloutDataModule
from lgym.modules.evaluation import MODES
from lgym.terminal import say

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

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.monotonic()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        rollouts = trainer.current_epoch
        if self._started is None:
            say(f"\nNothing was left to do after {rollouts} rollouts: more is up to trainer.max_epochs.")
        else:
            minutes = (time.monotonic() - self._started) / 60
            say(
                f"\nTrained {rollouts} rollouts, {trainer.global_step} optimizer steps; this session "
                f"{minutes:.1f} minutes."
            )
            if 0 < (last := self._evaluated_after) < rollouts:
                say(f"Stopped between two evaluations; the last one was after {last} rollouts.")
            callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
            guards = [callback for callback in callbacks if isinstance(callback, CollapseGuard)]
            if any(guard.rolled_back_after >= self._evaluated_after for guard in guards):
                say(
                    "The collapse guard went back to other weights after the last evaluation: "
                    "`lgym validate` evaluates them."
                )
            say(results_table(trainer, "val"))
        say(_places(trainer))

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        if trainer.state.fn == "fit" and isinstance(exception, KeyboardInterrupt):
            path = getattr(trainer.checkpoint_callback, "best_model_path", "")
            say(f"\nInterrupted. {KEPT.format(_short(Path(path))) if path else NOTHING_KEPT}")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._evaluated_after = trainer.current_epoch + 1
        if trainer.state.fn == "validate":
            say(results_table(trainer, "val"))

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        say(results_table(trainer, "test"))


def results_table(trainer: L.Trainer, stage: str) -> str:
    """Mean returns of the evaluated policy, and of other policies that the agent knows in its environment."""
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    rows = []
    for mode in MODES:
        name = f"{stage}_{mode}"
        if f"{name}/return_mean" in metrics:
            value = f"{metrics[f'{name}/return_mean']:+.4f} ± {metrics[f'{name}/return_ci95']:.4f}"
            rows.append((f"this policy, {mode}", value, f"{metrics[f'{name}/length_mean']:.1f} turns"))
    for mode in MODES:
        if f"blackjack/value_{mode}" in metrics:
            agreement = f"{metrics['blackjack/agreement']:.1%} optimal actions" if mode == "greedy" else ""
            rows.append(
                (f"this policy, {mode}, exact", f"{metrics[f'blackjack/value_{mode}']:+.4f}", agreement)
            )
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, RolloutDataModule):
        agent = data.agents["test" if stage == "test" else "validate"]
        rows += [(name, f"{value:+.4f}", "") for name, value in agent.reference_returns().items()]
    if not rows:
        return "No evaluation was run: set trainer.limit_val_batches above 0, or run `lgym validate`."
    width = max(len(name) for name, _, _ in rows)
    lines = [f"  {name:<{width}}  {value:<18}  {note}".rstrip() for name, value, note in rows]
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


def _places(trainer: L.Trainer) -> str:
    folder = Path(trainer.log_dir or trainer.default_root_dir)
    checkpoint = trainer.checkpoint_callback
    path = getattr(checkpoint, "last_model_path", "") or getattr(checkpoint, "best_model_path", "")
    lines = ["Where things are:"]
    if path:
        lines.append(f"  checkpoint  {_short(Path(path))}")
    if (folder / "adapter").is_dir():
        lines.append(f"  adapter     {_short(folder / 'adapter')}")
    lines += [
        f"  logs        {_short(folder)}",
        "Next:",
        f"  {_command('tensorboard')} --logdir {_short(folder.parent)}",
    ]
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
