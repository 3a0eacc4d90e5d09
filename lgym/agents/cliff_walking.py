"""The words of Gymnasium's cliff walk."""

from typing import Any

from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv

from lgym.agents.grid import offset_text, sides_text

MOVES = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}
"""Row and column offset of each action, in the order of Gymnasium's numbers."""


def cell_text(env: CliffWalkingEnv, position: Any) -> str:
    """A position as row and column, the kinds of the cells around it and the offset of the goal."""
    rows, columns = env.shape
    row, column = divmod(int(position), columns)
    sides = {}
    for name, (down, right) in MOVES.items():
        cell = row + down, column + right
        inside = 0 <= cell[0] < rows and 0 <= cell[1] < columns
        sides[name] = "Wall" if not inside else "Cliff" if env._cliff[cell] else "Free"
    goal = offset_text(rows - 1 - row, columns - 1 - column)
    return f"Row {row}, column {column}. {sides_text(sides, ('Free', 'Cliff', 'Wall'))}. Goal: {goal}."
