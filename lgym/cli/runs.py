"""Where a run keeps its things: `<default_root_dir>/version_<n>/`, with logs, config.yaml, `checkpoints/`, `adapter/`."""

from __future__ import annotations

from pathlib import Path

from lgym.types import ConfigError

CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"


class NoCheckpointError(ConfigError):
    """There is no checkpoint where one was asked for."""


def last_checkpoint(root: Path) -> Path:
    """The newest last checkpoint of the runs under `root`.

    Raises:
        NoCheckpointError: if there is none.
    """
    written = [*root.glob(f"version_*/{CHECKPOINTS}/{LAST}"), *root.glob(f"{CHECKPOINTS}/{LAST}")]
    found = sorted(written, key=lambda path: path.stat().st_mtime)
    if not found:
        raise NoCheckpointError(
            f"--ckpt_path last: there is no checkpoint under {root} yet (looked for version_*/{CHECKPOINTS}/{LAST}). "
            "A run saves its first one after its first rollout. Check trainer.default_root_dir, or start without "
            "--ckpt_path."
        )
    return found[-1]


def version_of(checkpoint: Path, root: Path) -> int | None:
    """The number of the run under `root` that a checkpoint belongs to, or `None` if it is not one of these runs."""
    folder = checkpoint.resolve().parent.parent
    if folder.parent != root.resolve() or not folder.name.startswith("version_"):
        return None
    number = folder.name.removeprefix("version_")
    return int(number) if number.isdigit() else None
