"""A virtual environment beside the project for a library with needs of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import torch


def set_up(name: str, *installs: Sequence[str]) -> Path:
    """Makes `.peers/NAME` with this Python's torch, unless it is there; returns its Python.

    Args:
        name: of the folder.
        installs: arguments of `pip install`, call by call.
    """
    folder = Path(__file__).parents[2] / ".peers" / name
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    ready = folder / "ready"  # the last thing written, so that half an environment is made again
    if ready.exists():
        return python
    print(f"Setting up .peers/{name} ...", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    for arguments in ([f"torch=={torch.__version__.split('+')[0]}"], *installs):
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)
    ready.touch()
    return python
