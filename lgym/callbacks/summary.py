"""What a run says at its end: the result beside the known policies, where things are, and what to do next."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import lightning as L

from lgym.callbacks.collapse_guard import CollapseGuard
from lgym.data import RolloutDataModule
from lgym.modules.evaluation import MODES
from lgym.terminal import say


class RunSummary(L.Callback):
    """Prints the result of `fit`, `validate` and `test` as a small table."""

    def __init__(self) -> None:
        super().__init__()
        self._evaluated_after = 0
        self._trained = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.monotonic()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._trained = True
        if trainer.current_epoch + 1 == trainer.max_epochs:
            trainer.check_val_every_n_epoch = 1  # the policy that a run ends with is always evaluated

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._trained:
            say(f"\nNothing was left to do after {trainer.current_epoch} rollouts: more is up to trainer.max_epochs.")
            say(_places(trainer))
            return
        minutes = (time.monotonic() - self._started) / 60
        say(
            f"\nTrained {trainer.current_epoch} rollouts, {trainer.global_step} optimizer steps; this session "
            f"{minutes:.1f} minutes."
        )
        if 0 < self._evaluated_after < trainer.current_epoch:
            say(f"Stopped between two evaluations; the last one was after {self._evaluated_after} rollouts.")
        if any(c.rolled_back_after >= self._evaluated_after for c in _guards(trainer)):
            say("The collapse guard went back to other weights after the last evaluation: `lgym validate` evaluates them.")
        say(results_table(trainer, "val"))
        say(_places(trainer))

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        path = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if trainer.state.fn == "fit" and isinstance(exception, KeyboardInterrupt):
            kept = f"{_short(Path(path))} holds the run after its last whole rollout; --ckpt_path last goes on from there."
            say("\nInterrupted. " + (kept if path else "No rollout was finished, so there is no checkpoint yet."))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._evaluated_after = trainer.current_epoch + 1
        if trainer.state.fn == "validate":
            say(results_table(trainer, "val"))

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        say(results_table(trainer, "test"))


def _guards(trainer: L.Trainer) -> list[CollapseGuard]:
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, CollapseGuard)]


def results_table(trainer: L.Trainer, stage: str) -> str:
    """The evaluated policy, and what the agent knows of other policies in its environment."""
    metrics = trainer.callback_metrics
    rows = []
    for mode in MODES:
        name = f"{stage}_{mode}/return_mean"
        if name in metrics:
            interval = float(metrics[f"{stage}_{mode}/return_ci95"])
            length = float(metrics[f"{stage}_{mode}/length_mean"])
            rows.append((f"this policy, {mode}", f"{float(metrics[name]):+.4f} ± {interval:.4f}", f"{length:.1f} turns"))
    for mode in MODES:
        if f"blackjack/value_{mode}" in metrics:
            agreement = f"{float(metrics['blackjack/agreement']):.1%} optimal actions" if mode == "greedy" else ""
            rows.append((f"this policy, {mode}, exact", f"{float(metrics[f'blackjack/value_{mode}']):+.4f}", agreement))
    data = getattr(trainer, "datamodule", None)
    if isinstance(data, RolloutDataModule):
        agent = data.agent_of("test" if stage == "test" else "validate")
        rows += [(name, f"{value:+.4f}", "") for name, value in agent.reference_returns().items()]
    if not rows:
        return "No evaluation was run: set trainer.limit_val_batches above 0, or run `lgym validate`."
    width = max(len(name) for name, _, _ in rows)
    lines = [f"  {name:<{width}}  {value:<18}  {note}".rstrip() for name, value, note in rows]
    return "\n".join(["Mean return per episode:", *lines])


def _places(trainer: L.Trainer) -> str:
    folder = Path(trainer.log_dir or trainer.default_root_dir)
    lines = ["Where things are:"]
    checkpoint = trainer.checkpoint_callback
    path = getattr(checkpoint, "last_model_path", "") or getattr(checkpoint, "best_model_path", "")
    if path:
        lines.append(f"  checkpoint  {_short(Path(path))}")
    if (folder / "adapter").is_dir():
        lines.append(f"  adapter     {_short(folder / 'adapter')}")
    lines.append(f"  logs        {_short(folder)}")
    lines.append("Next:")
    lines.append(f"  {_command('tensorboard')} --logdir {_short(folder.parent)}")
    if path:
        config = _short(folder / "config.yaml")
        lines.append(f"  {_command('lgym')} test --config {config} --ckpt_path {_short(Path(path))}")
        lines.append(f"  {_command('lgym')} predict --config {config} --ckpt_path {_short(Path(path))}")
    return "\n".join(lines)


def _command(name: str) -> str:
    """How to start a program of this environment: by its name where the shell finds it, else by its path."""
    program = Path(sys.executable).parent / name
    return name if not program.exists() or shutil.which(name) == str(program) else _short(program, follow=False)


def _short(path: Path, *, follow: bool = True) -> str:
    """Relative to the current folder where it lies in it."""
    resolved = path.resolve() if follow else path
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)
