"""What a peer's job tells of its speed."""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """Things done and learned from, a second."""

    per_second: float
    at_most: bool = False
    """Whether the job was stopped before it had learned from all that it did: then it is slower than this."""
