"""A full disk, said early and plainly."""

from __future__ import annotations

import shutil
from pathlib import Path

import lightning as L

from lgym.callbacks.collapse_guard import CollapseGuard


class DiskGuard(L.Callback):
    """Before training, and before every checkpoint, sees to it that the disk has room for it.

    A checkpoint is written beside the old one and then takes its place, so what is there already stays whole.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.require_room(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.require_room(trainer, pl_module)

    def require_room(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raises OSError if the next checkpoint does not fit."""
        if trainer.checkpoint_callback is None:
            return
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        while not folder.exists():
            folder = folder.parent
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        kept = sum(callback.snapshots for callback in callbacks if isinstance(callback, CollapseGuard))
        needed = checkpoint_bytes(pl_module) * (1 + kept)
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise OSError(
                f"The disk of {folder} has {free / 1e6:.0f} MB left and a checkpoint needs about {needed / 1e6:.0f} MB. "
                "The last checkpoint is untouched. Free some room and resume with --ckpt_path last, or keep runs elsewhere "
                "with --trainer.default_root_dir."
            )


def checkpoint_bytes(module: L.LightningModule) -> int:
    """About what a checkpoint takes: every trained parameter and two moments of it, and a megabyte of the rest."""
    return 3 * sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad) + 1_000_000
