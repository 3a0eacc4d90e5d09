"""The checkpoint of a run's best evaluation, kept beside its last one."""

import math
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from lgym import distributed
from lgym.callbacks.collapse_guard import CollapseGuard
from lgym.callbacks.last_checkpoint import CHECKPOINTS, last_checkpoint
from lgym.types import ConfigError

BEST = "best.ckpt"
MONITORS = ("val_sampled/return_mean", "val_greedy/return_mean")


class BestCheckpoint(Checkpoint):
    """Keeps the checkpoint whose evaluation had the highest return as `checkpoints/best.ckpt`.

    It is a whole one, so that a run can also go on from it. A checkpoint is written at the end of the
    evaluated rollout; where an evaluation comes after a run's last rollout, `last.ckpt` is the best. A run
    that goes on in another folder, where that file is not, has its best evaluation anew.

    Args:
        monitor: metric of evaluations; by default the mean return sampled, or greedy where that is absent.
    """

    def __init__(self, monitor: str | None = None) -> None:
        self.monitors = MONITORS if monitor is None else (monitor,)
        self.monitor = ""  # the one that was found
        self.score: float | None = None
        self.rollouts = 0  # after which it was reached
        self.path = ""
        self._is_kept = False  # from an earlier session of the run
        self._candidate: dict[str, Any] | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # every process has to ask
        self.path = str(folder / CHECKPOINTS / BEST)
        self._is_kept = trainer.strategy.broadcast(Path(self.path).is_file())

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        for monitor in self.monitors:
            if monitor in trainer.callback_metrics:
                score = float(trainer.callback_metrics[monitor])
                if not math.isnan(score) and (self.score is None or score > self.score):
                    rollouts = rollouts_done(trainer)
                    self._candidate = {"monitor": monitor, "score": score, "rollouts": rollouts}
                return
        if self.monitors != MONITORS:
            known = ", ".join(sorted(name for name in trainer.callback_metrics if name.startswith("val")))
            raise ConfigError(
                f"BestCheckpoint's monitor is {self.monitors[0]!r}, and the evaluation logs {known}. Name "
                "one."
            )

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        guards = [callback for callback in callbacks if isinstance(callback, CollapseGuard)]
        rolled_back = any(guard.rolled_back_after == trainer.current_epoch + 1 for guard in guards)
        if rolled_back:  # these are not the weights that were evaluated
            self._candidate = None
        elif self._accept():
            trainer.save_checkpoint(self.path, weights_only=False)  # unset, Lightning says so

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes the last checkpoint, where the run was evaluated after it: now it may be in mid-rollout.

        That checkpoint has other weights where a session went on from an older one and had no rollout of its
        own.
        """
        last = last_checkpoint(trainer)
        if self._candidate is None or not last or distributed.rank() != 0:
            return
        checkpoint_io = trainer.strategy.checkpoint_io
        checkpoint = checkpoint_io.load_checkpoint(last)
        if checkpoint["global_step"] == trainer.global_step and self._accept():
            checkpoint["callbacks"][self.state_key] = self.state_dict()
            for path in (self.path, last):
                checkpoint_io.save_checkpoint(checkpoint, path)

    def _accept(self) -> bool:
        """Make the candidate the best, if there is one."""
        candidate, self._candidate = self._candidate, None
        vars(self).update(candidate or {})
        return candidate is not None

    def state_dict(self) -> dict[str, Any]:
        return {"monitor": self.monitor, "score": self.score, "rollouts": self.rollouts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._is_kept:
            vars(self).update(state_dict)


def rollouts_done(trainer: L.Trainer) -> int:
    """Rollouts of the run that have been learned from, also in an evaluation at the end of one."""
    progress = trainer.fit_loop.epoch_progress.current
    return progress.ready if trainer.is_last_batch else progress.completed
