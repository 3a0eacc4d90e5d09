"""Frozen Lake in words."""

from __future__ import annotations

from collections.abc import Sequence

from gymnasium.envs.toy_text.frozen_lake import MAPS

from lgym.agents.base import TextAgent

STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
"""Row and column that each action moves by, in the order of Gymnasium's numbers."""

CELLS = {"S": "Ice", "F": "Ice", "G": "Ice", "H": "Hole"}


class FrozenLakeAgent(TextAgent):
    """Gymnasium's `FrozenLake-v1`: what lies to the four sides of where one stands, and how far the goal is.

    On slippery ice the lake decides in two of three cases, and the prompt says so if `is_slippery` is given here too.
    """

    actions = tuple(STEPS)

    def __init__(self, map_rows: Sequence[str] = tuple(MAPS["4x4"]), is_slippery: bool = False) -> None:
        """
        Args:
            map_rows: the lake as `data.env_kwargs.desc` has it, a text a row of S, F, H and G; by default the 4x4 map.
            is_slippery: whether the prompt says that the ice is slippery.
        """
        rows = list(map_rows)
        if not rows or any(len(row) != len(rows[0]) or set(row) - set(CELLS) for row in rows) or "G" not in "".join(rows):
            raise ValueError(f"map_rows is {rows}; it must be rows of equal length of the letters S, F, H and G, with a G.")
        self.map_rows = tuple(map_rows)
        self.is_slippery = is_slippery

    @property
    def system_prompt(self) -> str:
        slips = " The ice is slippery: you may slide to the side." if self.is_slippery else ""
        return (
            f"Cross the frozen lake to the goal without falling into a hole.{slips} "
            "Answer with one word: left, down, right or up."
        )

    def format_observation(self, observation: int) -> str:
        row, column = divmod(int(observation), len(self.map_rows[0]))
        sides = {name: self._cell(row + down, column + right) for name, (down, right) in STEPS.items()}
        there = {cell: [name for name in STEPS if sides[name] == cell] for cell in ("Ice", "Hole", "Wall")}
        lists = [f"{cell}: {', '.join(names)}" for cell, names in there.items() if names]
        return f"{'. '.join(lists)}. Goal: {self._way(row, column)}"

    def _cell(self, row: int, column: int) -> str:
        inside = 0 <= row < len(self.map_rows) and 0 <= column < len(self.map_rows[0])
        return CELLS[self.map_rows[row][column]] if inside else "Wall"

    def _way(self, row: int, column: int) -> str:
        """How far the goal is: rows, then columns."""
        goal_row, goal_column = next((r, text.index("G")) for r, text in enumerate(self.map_rows) if "G" in text)
        parts = (
            (goal_row - row, "down"),
            (row - goal_row, "up"),
            (goal_column - column, "right"),
            (column - goal_column, "left"),
        )
        return " and ".join(f"{steps} {name}" for steps, name in parts if steps > 0) or "here"
