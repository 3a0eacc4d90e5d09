"""The hit-or-stay chart of Blackjack, drawn for the hit probabilities of a policy."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lgym.envs import blackjack

# safe for the color-blind
_COLORS = LinearSegmentedColormap.from_list("stay_hit", ["#0072B2", "#F4F4F4", "#E08000"])
_NORM = Normalize(0, 1)
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
    figure = Figure(figsize=(9, 7), dpi=100)
    value = blackjack.policy_value(hit_probability)
    agreement = blackjack.agreement(np.asarray(hit_probability) > 0.5)
    figures = f"expected return {value:+.4f} a hand, optimal action in {agreement:.1%} of the states"
    figure.text(0.06, 0.95, title or "Blackjack", fontsize=14, fontweight="bold", parse_math=False)
    figure.text(0.06, 0.915, figures, fontsize=11)
    for name, soft, left, lowest in (("hard", 0, 0.06, 4), ("soft", 1, 0.55, 12)):
        height = (22 - lowest) * _ROW_HEIGHT
        axes = figure.add_axes((left, 0.83 - height, 0.43, height), label=name)
        _draw_panel(axes, np.asarray(hit_probability, dtype=float), soft, lowest)
        axes.set_title(f"{name} totals, dealer shows", fontsize=11, pad=20)
    _draw_legend(figure)
    return figure


def chart_array(figure: Figure) -> np.ndarray:
    """The figure's pixels, [height, width, 3] of uint8, for TensorBoard's `add_image(dataformats="HWC")`."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_panel(axes: Axes, hit_probability: np.ndarray, soft: int, lowest: int) -> None:
    probability = dict(zip(blackjack.states(), hit_probability, strict=True))
    optimal = dict(zip(blackjack.states(), blackjack.is_optimal(hit_probability > 0.5), strict=True))
    totals = range(21, lowest - 1, -1)
    cells = [[probability[total, card, soft] for card in _COLUMNS] for total in totals]
    axes.imshow(cells, cmap=_COLORS, norm=_NORM, aspect="auto")
    for row, total in enumerate(totals):
        for column, card in enumerate(_COLUMNS):
            hit = probability[total, card, soft]
            color = "white" if hit < 0.2 else "#202020"
            axes.text(
                column,
                row,
                "H" if hit > 0.5 else "S",
                ha="center",
                va="center_baseline",
                fontsize=9.5,
                color=color,
            )
            if not optimal[total, card, soft]:
                corner = (column - 0.44, row - 0.42)
                axes.add_patch(
                    Rectangle(corner, 0.88, 0.84, fill=False, edgecolor="black", linewidth=2, zorder=3)
                )
    axes.set_xticks(range(10), ["A" if card == 1 else str(card) for card in _COLUMNS])
    axes.set_yticks(range(len(cells)), [str(total) for total in totals])
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(0.5, 9), minor=True)
    axes.set_yticks(np.arange(0.5, len(cells) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def _draw_legend(figure: Figure) -> None:
    axes = figure.add_axes((0.55, 0.27, 0.43, 0.025), label="colors")
    mappable = ScalarMappable(_NORM, _COLORS)
    figure.colorbar(mappable, cax=axes, orientation="horizontal", label="probability of hit")
    explanation = "H hit, S stay: the likelier action\nblack frame: not the optimal action"
    figure.text(0.55, 0.155, explanation, fontsize=10, va="top", linespacing=1.7)
