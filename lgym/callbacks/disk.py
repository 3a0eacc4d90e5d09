"""A full disk, reported early and plainly."""

import shutil
from pathlib import Path

import lightning as L

from lgym.callbacks.best_checkpoint import BestCheckpoint
from lgym.callbacks.collapse_guard import CollapseGuard
from lgym.types import LgymError


class DiskFullError(LgymError, OSError):
    """The disk has no room for a checkpoint."""


class DiskGuard(L.Callback):
    """Raises `DiskFullError` before training, and before a checkpoint, if the disk has no room for the
    checkpoint.

    A checkpoint is written beside the old one and then takes its place, so the old one stays whole.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.checkpoint_callback is None:
            return
        run = Path(trainer.log_dir or trainer.default_root_dir)
        folder = next(path for path in (run, *run.parents) if path.exists())
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        snapshots = sum(callback.snapshots for callback in callbacks if isinstance(callback, CollapseGuard))
        best = sum(isinstance(callback, BestCheckpoint) for callback in callbacks)
        needed = checkpoint_bytes(pl_module) * (1 + snapshots + best)
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise DiskFullError(
                f"The disk of {folder} has {free / 1e6:.0f} MB left and a checkpoint needs about "
                f"{needed / 1e6:.0f} MB. The last checkpoint is untouched. Free some room and resume with "
                "--ckpt_path last, or keep runs elsewhere with --trainer.default_root_dir."
            )

    on_train_epoch_end = on_fit_start


def checkpoint_bytes(module: L.LightningModule) -> int:
    """Approximate size of a checkpoint: trained parameters, two moments of each, and a megabyte of the
    rest."""
    return 3 * sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad) + 1_000_000
