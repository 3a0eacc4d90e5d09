"""The hit-or-stay chart of Blackjack, drawn for the hit probabilities of a policy."""

from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lgym.envs import blackjack

# safe for the color-blind
_COLORS = LinearSegmentedColormap.from_list("stay_hit", ["#0072B2", "#F4F4F4", "#E08000"])
_COLUMNS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 1]  # players write the ace last
_ROW_HEIGHT = 0.0435  # of the figure


def strategy_chart(hit_probability: np.ndarray, *, title: str = "") -> Figure:
    """Draw hard and soft hands by dealer's card: color = probability of a hit, letter = the likelier action.

    A black frame marks each state whose likelier action (stay at exactly one half) is not the optimal one.
    The figure belongs to no window and no pyplot state: it is freed with its last reference and may be drawn
    in any thread.

    Args:
        hit_probability: the policy's, [280], in the order of `blackjack.states()`.
        title: above the chart.
    """
    hit_probability = np.asarray(hit_probability, dtype=float)
    value = blackjack.policy_value(hit_probability)
    is_optimal = blackjack.is_optimal(hit_probability > 0.5)
    figures = f"expected return {value:+.4f} a hand, optimal action in {is_optimal.mean():.1%} of the states"
    figure = Figure(figsize=(9, 7), dpi=100)
    figure.text(0.06, 0.95, title or "Blackjack", fontsize=14, fontweight="bold", parse_math=False)
    figure.text(0.06, 0.915, figures, fontsize=11)
    cells = dict(zip(blackjack.states(), zip(hit_probability, is_optimal, strict=True), strict=True))
    for name, soft, left, lowest in (("hard", 0, 0.06, 4), ("soft", 1, 0.55, 12)):
        height = (22 - lowest) * _ROW_HEIGHT
        axes = figure.add_axes((left, 0.83 - height, 0.43, height), label=name)
        axes.set_title(f"{name} totals, dealer shows", fontsize=11, pad=20)
        _draw_panel(axes, cells, soft, lowest)
    legend = figure.add_axes((0.55, 0.27, 0.43, 0.025), label="colors")
    figure.colorbar(axes.images[0], cax=legend, orientation="horizontal", label="probability of hit")
    figure.text(
        0.55,
        0.155,
        "H hit, S stay: the likelier action\nblack frame: not the optimal action",
        fontsize=10,
        va="top",
        linespacing=1.7,
    )
    return figure


def _draw_panel(axes: Axes, cells: dict[blackjack.State, tuple[float, bool]], soft: int, lowest: int) -> None:
    totals = range(21, lowest - 1, -1)
    probabilities = [[cells[total, card, soft][0] for card in _COLUMNS] for total in totals]
    axes.imshow(probabilities, cmap=_COLORS, vmin=0, vmax=1, aspect="auto")
    for (row, total), (column, card) in product(enumerate(totals), enumerate(_COLUMNS)):
        hit, is_optimal = cells[total, card, soft]
        axes.text(
            column,
            row,
            "H" if hit > 0.5 else "S",
            ha="center",
            va="center_baseline",
            fontsize=9.5,
            color="white" if hit < 0.2 else "#202020",
        )
        if not is_optimal:
            corner = (column - 0.44, row - 0.42)
            axes.add_patch(
                Rectangle(corner, 0.88, 0.84, fill=False, edgecolor="black", linewidth=2, zorder=3)
            )
    axes.set_xticks(range(10), ["A" if card == 1 else str(card) for card in _COLUMNS])
    axes.set_yticks(range(len(totals)), list(map(str, totals)))
    axes.set_xticks(np.arange(0.5, 9), minor=True)
    axes.set_yticks(np.arange(0.5, len(totals) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
