"""The picture of a maze policy, read back from the figure's artists."""

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgb

from lgym.envs import maze
from lgym.envs.figures import chart_array
from lgym.envs.maze_chart import NOT_OPTIMAL, OPTIMAL, policy_chart

DIRECTIONS = {(-1, 0): 0, (1, 0): 1, (0, -1): 2, (0, 1): 3}  # rows grow downwards
POLICY = np.random.default_rng(0).dirichlet(np.ones(4), 25)


def arrows(figure):
    """Action, color and opacity of each arrow by its cell."""
    (quiver,) = figure.axes[0].collections
    ways = zip(np.sign(quiver.U).astype(int).tolist(), np.sign(quiver.V).astype(int).tolist(), strict=True)
    return {
        int(row * 13 + column): (DIRECTIONS[way], tuple(color[:3]), color[3])
        for (column, row), way, color in zip(quiver.XY, ways, quiver.get_facecolors(), strict=True)
    }


def test_an_arrow_is_the_likeliest_move():
    """One that belongs to another cell, or points up where the policy goes down, misleads whoever looks."""
    shown = arrows(policy_chart(POLICY))
    assert tuple(shown) == maze.START_CELLS
    assert [action for action, _, _ in shown.values()] == POLICY.argmax(axis=1).tolist()
    assert [opacity for *_, opacity in shown.values()] == pytest.approx(POLICY.max(axis=1).tolist())


def test_moves_that_are_not_optimal_have_another_color():
    is_optimal = maze.is_optimal(POLICY)
    assert 0 < is_optimal.sum() < 25
    colors = [color for _, color, _ in arrows(policy_chart(POLICY)).values()]
    assert colors == [to_rgb(OPTIMAL if good else NOT_OPTIMAL) for good in is_optimal]
    assert {color for _, color, _ in arrows(policy_chart(maze.optimal_moves())).values()} == {to_rgb(OPTIMAL)}


def test_an_arrow_points_down_where_the_rows_go_down():
    """The environment's row 0 is on top, and the picture's too."""
    axes = policy_chart(POLICY).axes[0]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    (quiver,) = axes.collections
    assert quiver.angles == "xy"


def test_walls_are_darker_than_open_cells_and_the_goal_is_marked():
    figure = policy_chart(POLICY)
    image = figure.axes[0].images[0]
    shades = image.cmap(image.norm(image.get_array()))[..., :3].mean(axis=2)
    is_open = np.array([[kind != "#" for kind in row] for row in maze.MAP])
    assert shades[~is_open].max() < 0.4 < shades[is_open].min()
    (goal,) = [text for text in figure.axes[0].texts if text.get_text() == "goal"]
    assert goal.get_position() == (6, 8)


def test_title_and_exact_figures_are_in_the_figure():
    """Two of 25 wrong are 92 %; and the value is that within the run's time limit."""
    policy = maze.optimal_moves().astype(float)
    texts = " ".join(text.get_text() for text in policy_chart(policy, title="Rollout $3$").texts)
    assert "Rollout $3$" in texts
    assert "-6.8400" in texts
    assert "100.0%" in texts
    texts = " ".join(text.get_text() for text in policy_chart(policy, steps=1).texts)
    assert "-0.9600" in texts
    policy[:2] = [1, 0, 0, 0]
    assert "92.0%" in " ".join(text.get_text() for text in policy_chart(policy).texts)


def test_pyplot_does_not_hold_the_figure():
    """Pyplot would keep every figure of a long run alive, and draws in the main thread only."""
    before = pyplot.get_fignums()
    image = chart_array(policy_chart(POLICY))
    assert pyplot.get_fignums() == before
    assert image.shape == (700, 800, 3)
    assert image.std() > 20
