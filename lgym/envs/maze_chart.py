"""The maze with an arrow in each cell, drawn for the moves of a policy."""

import numpy as np
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from lgym.envs import maze

# safe for the color-blind
OPTIMAL, NOT_OPTIMAL = "#0072B2", "#E08000"
_KINDS = {" ": "#F4F4F4", "#": "#404040", "G": "#9FD8C4"}
_ARROWS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # of each action, right and down


def policy_chart(probabilities: ArrayLike, *, title: str = "", steps: int = maze.STEPS) -> Figure:
    """Draw each cell's likeliest move as an arrow: the likelier, the more opaque; orange where it is not
    optimal.

    The figure belongs to no window and no pyplot state: it is freed with its last reference and may be drawn
    in any thread.

    Args:
        probabilities: the policy's, of each action, [25, 4], in the order of `maze.START_CELLS`.
        title: above the maze.
        steps: the time limit, for the policy's expected return.
    """
    probabilities = np.asarray(probabilities, dtype=float)
    value = maze.policy_value(probabilities, steps)
    is_optimal = maze.is_optimal(probabilities)
    figures = f"expected return {value:+.4f}, likeliest move optimal in {is_optimal.mean():.1%} of the cells"
    figure = Figure(figsize=(8, 7), dpi=100)
    figure.text(0.06, 0.945, title or "Maze", fontsize=14, fontweight="bold", parse_math=False)
    figure.text(0.06, 0.9, figures, fontsize=11)
    figure.text(
        0.06,
        0.03,
        "arrow: the likeliest move, the more opaque the likelier\nblue: an optimal move, orange: another",
        fontsize=10,
        linespacing=1.7,
    )
    axes = figure.add_axes((0.06, 0.13, 0.88, 0.74), label="maze")
    kinds = [[list(_KINDS).index(kind) for kind in row] for row in maze.MAP]
    axes.imshow(kinds, cmap=ListedColormap(list(_KINDS.values())), vmin=-0.5, vmax=len(_KINDS) - 0.5)
    goal_row, goal_column = divmod(maze.GOAL, maze.COLUMNS)
    axes.text(goal_column, goal_row, "goal", ha="center", va="center_baseline", fontsize=9.5)
    rows, columns = np.divmod(maze.START_CELLS, maze.COLUMNS)
    right, down = 0.7 * _ARROWS[probabilities.argmax(axis=1)].T
    colors = [
        (*to_rgb(OPTIMAL if good else NOT_OPTIMAL), likeliest)
        for good, likeliest in zip(is_optimal, probabilities.max(axis=1).clip(0, 1), strict=True)
    ]
    axes.quiver(
        columns,
        rows,
        right,
        down,
        color=colors,
        angles="xy",
        scale_units="xy",
        scale=1,
        pivot="middle",
        width=0.008,
    )
    axes.set_xticks(range(maze.COLUMNS))
    axes.set_yticks(range(len(maze.MAP)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
