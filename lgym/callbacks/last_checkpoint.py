"""The checkpoint of a run's last whole rollout, and Lightning's own checkpoints beside it."""

from collections.abc import Iterable
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from lgym.types import ConfigError

CHECKPOINTS, LAST = "checkpoints", "last.ckpt"


class LastCheckpoint(ModelCheckpoint):
    """Keeps the run after its last whole rollout as `checkpoints/last.ckpt` in the run's folder."""

    def __init__(self) -> None:
        super().__init__(filename=Path(LAST).stem, save_on_train_epoch_end=True, enable_version_counter=False)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # every process has to ask
        self.dirpath = str((folder / CHECKPOINTS).resolve())
        super().setup(trainer, pl_module, stage)


def last_checkpoint(trainer: L.Trainer) -> str:
    """Path of the checkpoint of the last whole rollout in the run's folder; empty before there is one."""
    ours = (c for c in trainer.checkpoint_callbacks if isinstance(c, LastCheckpoint))
    paths = (Path(c.dirpath or "") / LAST for c in ours)
    return next((str(path) for path in paths if path.is_file()), "")


def save_between_rollouts(callbacks: Iterable[ModelCheckpoint]) -> None:
    """Have checkpoints saved at the end of a rollout, where Lightning would do so within an evaluation: a run
    that goes on from there would lose the rollout at hand.

    Raises:
        ConfigError: of one that is to save within rollouts.
    """
    for callback in callbacks:
        within = {
            "every_n_train_steps": callback._every_n_train_steps > 0,
            "train_time_interval": callback._train_time_interval is not None,
            "save_on_exception": callback.save_on_exception,
            "save_last": bool(callback.save_last),
            "save_on_train_epoch_end: false": callback._save_on_train_epoch_end is False,
        }
        if named := [name for name, is_set in within.items() if is_set]:
            raise ConfigError(
                f"ModelCheckpoint's {', '.join(named)} would save in the middle of a rollout, from which no "
                f"run can go on exactly. Leave it out ({LAST} is written after every rollout), or give "
                "every_n_epochs, a number of rollouts."
            )
        callback._save_on_train_epoch_end = True
