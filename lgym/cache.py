"""Folder of the files that lgym makes once: converted models, compiled games."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`LGYM_CACHE`, or `lgym` in the user's cache folder, as `huggingface_hub` and torch have theirs."""
    user_cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get("LGYM_CACHE", f"{user_cache}/lgym")).expanduser()
