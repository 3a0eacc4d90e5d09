"""Checkpoints on disk, written so that there is always a whole one."""

import errno
import hashlib
import io
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lgym.callbacks.disk import DiskFullError
from lgym.phases import phase
from lgym.types import LgymError

ZIP_END = b"PK\x05\x06"  # begins an archive's last record, of 22 bytes; the last two are its comment's length
CHECKSUM_PREFIX = b"lgym sha256 "  # begins that comment in a checkpoint of lgym
COMMENT_LENGTH = len(CHECKSUM_PREFIX) + 64


class CorruptCheckpointError(LgymError, ValueError):
    """A checkpoint is torn or corrupt, or would run code when opened."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically and keeps the one before; reads only whole ones.

    A new checkpoint is written beside the old one of its name, which it replaces when it is whole; the old
    one stays as the one before. The file, an archive that `torch.load` reads like any other, ends with a
    checksum. If the newest is torn, the one before it is read, with a warning. Nothing but tensors and plain
    data is loaded.
    """

    @phase("checkpoints")
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        body = buffer.getvalue()[:-2] + COMMENT_LENGTH.to_bytes(2, "little")
        new = path.with_name(f"{path.name}.new")
        try:
            with new.open("wb") as file:
                file.writelines([body, _checksum(body)])
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                _keep(path, before(path))
            new.replace(path)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise DiskFullError(
                f"{error}. The disk is full; the last checkpoint is whole. Free some room and --ckpt_path "
                "last."
            ) from error
        finally:
            new.unlink(missing_ok=True)

    def load_checkpoint(
        self, path: str | Path, map_location: Callable | Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:  # on the CPU first: the machine that wrote it may have had other devices
        try:
            return super().load_checkpoint(
                whole(Path(path)), map_location, weights_only=weights_only is not False
            )
        except UnpicklingError as error:
            raise CorruptCheckpointError(
                "The checkpoint (ckpt_path) was not opened. It holds something else than tensors, numbers "
                "and texts, and opening that could run a program of whoever wrote it; or it is no "
                "checkpoint, or damaged. None of lgym's own is like that: give another one."
            ) from error

    def remove_checkpoint(self, path: str | Path) -> None:
        super().remove_checkpoint(path)
        before(Path(path)).unlink(missing_ok=True)


def before(path: Path) -> Path:
    """Path of the checkpoint that was written before this one, under the same name."""
    return path.with_name(f"{path.stem}.before{path.suffix}")


def whole(path: Path) -> Path:
    """The checkpoint, or the one before it if it is torn.

    Raises:
        FileNotFoundError: if there is none.
        CorruptCheckpointError: if neither is whole.
    """
    if not path.exists():
        raise FileNotFoundError(f"There is no checkpoint {path}.")
    if is_whole(path):
        return path
    earlier = before(path)
    if not (earlier.exists() and is_whole(earlier)):
        raise CorruptCheckpointError(
            f"The checkpoint {path} is torn or corrupt, and there is no whole one before it "
            f"({earlier.name}). Give another with --ckpt_path, or start without."
        )
    warnings.warn(
        f"The checkpoint {path} is torn or corrupt: going on from the one before it, {earlier}.", stacklevel=2
    )
    return earlier


def is_whole(path: Path) -> bool:
    """True if a checkpoint has the checksum it ends with; without one, if it is an archive to its end."""
    data = path.read_bytes()
    comment = data[-COMMENT_LENGTH:]
    if comment.startswith(CHECKSUM_PREFIX):
        return comment == _checksum(data[:-COMMENT_LENGTH])
    return data[-22:].startswith(ZIP_END) and data.endswith(b"\0\0")


def _checksum(body: bytes) -> bytes:
    return CHECKSUM_PREFIX + hashlib.sha256(body).hexdigest().encode()


def _keep(path: Path, earlier: Path) -> None:
    """Gives the file a second name, so that there is no moment without it; a copy where the disk has no hard
    links."""
    second = earlier.with_name(f"{earlier.name}.new")
    second.unlink(missing_ok=True)
    try:
        os.link(path, second)
    except OSError:
        shutil.copyfile(path, second)
    second.replace(earlier)
