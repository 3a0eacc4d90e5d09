"""Words for what lies around one on a grid of rows and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def way(down: int, right: int) -> str:
    """How far something is, rows first: '2 down and 1 left', or 'here'."""
    parts = ((down, "down"), (-down, "up"), (right, "right"), (-right, "left"))
    return " and ".join(f"{steps} {name}" for steps, name in parts if steps > 0) or "here"


def around(sides: Mapping[str, str], kinds: Sequence[str]) -> str:
    """What lies to each side, like with like and in the order of `kinds`: 'Ice: down, right. Wall: left, up'."""
    there = {kind: [side for side, what in sides.items() if what == kind] for kind in kinds}
    return ". ".join(f"{kind}: {', '.join(names)}" for kind, names in there.items() if names)
