"""Words for positions on a grid of rows and columns."""

from collections.abc import Mapping, Sequence


def offset_text(down: int, right: int) -> str:
    """The offset of a goal, rows first: '2 down and 1 left', or 'here'."""
    parts = ((down, "down"), (-down, "up"), (right, "right"), (-right, "left"))
    return " and ".join(f"{steps} {name}" for steps, name in parts if steps > 0) or "here"


def sides_text(sides: Mapping[str, str], kinds: Sequence[str]) -> str:
    """The kind of each side, like with like and in the order of `kinds`: 'Ice: down, right. Wall: left,
    up'."""
    grouped = {kind: [side for side, side_kind in sides.items() if side_kind == kind] for kind in kinds}
    return ". ".join(f"{kind}: {', '.join(names)}" for kind, names in grouped.items() if names)
