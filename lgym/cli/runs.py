"""Layout of a run's folder: `<default_root_dir>/version_<n>/` with logs, config.yaml, `checkpoints/` and
`adapter/`."""

import re
from pathlib import Path

from lgym.callbacks.best_checkpoint import BEST
from lgym.callbacks.last_checkpoint import CHECKPOINTS, LAST
from lgym.callbacks.provenance import RUN_FILE
from lgym.types import ConfigError


def find_checkpoint(ckpt_path: str, root: Path) -> Path | None:
    """The checkpoint that `--ckpt_path` names.

    Args:
        ckpt_path: a file, `last` for the newest of the runs under `root`, `auto` for that if there is one, or
            `best` for the newest that had the best evaluation of its run.
        root: `trainer.default_root_dir`.

    Returns:
        The file; `None` for `auto` without any.

    Raises:
        ConfigError: if there is no such file.
    """
    if ckpt_path not in ("last", "auto", "best"):
        if Path(ckpt_path).is_file():
            return Path(ckpt_path)
        raise ConfigError(
            f"--ckpt_path {ckpt_path}: there is no such file. Give a .ckpt file, `last` for the newest under "
            f"{root}, `auto` for that if there is one, or `best` for that of the best evaluation."
        )
    name, event = (BEST, "evaluation") if ckpt_path == "best" else (LAST, "rollout")
    files = [*root.glob(f"version_*/{CHECKPOINTS}/{name}"), *root.glob(f"{CHECKPOINTS}/{name}")]
    if not files and ckpt_path != "auto":
        raise ConfigError(
            f"--ckpt_path {ckpt_path}: there is no checkpoint under {root} yet (looked for "
            f"version_*/{CHECKPOINTS}/{name}). A run saves its first one after its first {event}. Check "
            "trainer.default_root_dir, or start without --ckpt_path."
        )
    return max(files, key=lambda file: file.stat().st_mtime, default=None)


def newest_run(root: Path) -> Path | None:
    """The folder of the newest run of `fit` under `root`; `None` where there is none."""
    folders = (file.parent for file in root.glob(f"version_*/{RUN_FILE}"))
    return max(folders, key=lambda run: run.stat().st_mtime, default=None)


def new_run(root: Path) -> str:
    """The name of a new run's folder under `root`: the number behind the highest."""
    numbers = [folder.name.removeprefix("version_") for folder in root.glob("version_*")]
    return f"version_{1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)}"


def run_of(checkpoint: Path, root: Path) -> str | None:
    """The folder's name of the run under `root` that a checkpoint belongs to; `None` for a checkpoint from
    elsewhere."""
    folder = checkpoint.resolve().parent.parent
    is_run = folder.parent == root.resolve() and re.fullmatch(r"version_\d+", folder.name)
    return folder.name if is_run else None


def run_folder(ckpt_path: str | None, root: str) -> Path:
    """The folder of a checkpoint's run; `root` without one, and for a checkpoint that is in no run."""
    folder = Path(ckpt_path or "").parent
    return folder.parent if folder.name == CHECKPOINTS else Path(root)
