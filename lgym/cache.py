"""Where lgym keeps what it makes once: converted models, compiled games."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """`LGYM_CACHE`, or the platform's folder for such files."""
    if "LGYM_CACHE" in os.environ:
        return Path(os.environ["LGYM_CACHE"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lgym"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "lgym"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lgym"
