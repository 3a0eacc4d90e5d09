"""How checkpoints are written and read, so that there is always a whole one."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lgym.types import LgymError

END = b"PK\x05\x06"
"""What a zip archive's last record, of 22 bytes, begins with; its last two are the length of the comment behind it."""

MARK = b"lgym sha256 "
"""What that comment begins with in a checkpoint of ours; the rest is the checksum of all before it."""

COMMENT = len(MARK) + 64


class CorruptCheckpointError(LgymError, ValueError):
    """A checkpoint is not whole, and neither is one before it."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside the one of that name, which stays until it is whole, and then as the one before it.

    Reads what is whole: the file, an archive that `torch.load` reads like any other, ends with a checksum. Where the newest
    is torn, the one before it is taken, with a warning. Nothing but tensors and plain data is loaded.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        new = path.with_name(f"{path.name}.new")
        try:
            with new.open("wb") as file:
                file.write(_signed(buffer.getvalue()))
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                _keep(path, before(path))
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)

    def load_checkpoint(
        self, path: str | Path, map_location: Callable | Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return super().load_checkpoint(whole(Path(path)), map_location, weights_only=weights_only is not False)

    def remove_checkpoint(self, path: str | Path) -> None:
        super().remove_checkpoint(path)
        before(Path(path)).unlink(missing_ok=True)


def before(path: Path) -> Path:
    """Where the checkpoint is that was written before this one, under the same name."""
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
            f"The checkpoint {path} is torn or corrupt, and there is no whole one before it ({earlier.name}). Give another "
            "with --ckpt_path, or start without."
        )
    warnings.warn(f"The checkpoint {path} is torn or corrupt: going on from the one before it, {earlier}.", stacklevel=2)
    return earlier


def is_whole(path: Path) -> bool:
    """Whether a checkpoint's file has the checksum that it ends with; of one that has none, written by another program,
    whether it is an archive to its end."""
    data = path.read_bytes()
    body, comment = data[:-COMMENT], data[-COMMENT:]
    if comment.startswith(MARK):
        return comment == _checksum(body)
    return data[-22:].startswith(END) and data.endswith(b"\0\0")


def _signed(archive: bytes) -> bytes:
    """A zip archive without a comment, with its checksum as one."""
    body = archive[:-2] + COMMENT.to_bytes(2, "little")
    return body + _checksum(body)


def _checksum(body: bytes) -> bytes:
    return MARK + hashlib.sha256(body).hexdigest().encode()


def _keep(path: Path, earlier: Path) -> None:
    """Gives the file a second name, so that there is no moment without it; a copy where the disk knows no such names."""
    second = earlier.with_name(f"{earlier.name}.new")
    second.unlink(missing_ok=True)
    try:
        os.link(path, second)
    except OSError:
        shutil.copyfile(path, second)
    second.replace(earlier)
