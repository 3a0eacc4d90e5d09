"""The Blackjack chart, read back from the figure's artists."""

import numpy as np
import pytest
from matplotlib import pyplot

from lgym.envs import blackjack
from lgym.envs.blackjack_chart import strategy_chart
from lgym.envs.figures import chart_array

STATES = blackjack.states()
OPTIMAL = blackjack.optimal_policy().astype(float)


def panels(figure):
    return [axes for axes in figure.axes if axes.get_label() in ("hard", "soft")]


def shown_state(axes, x, y):
    """The state of the cell at (x, y), read off the axis labels."""
    dealer = axes.get_xticklabels()[round(x)].get_text()
    total = axes.get_yticklabels()[round(y)].get_text()
    return int(total), 1 if dealer == "A" else int(dealer), int(axes.get_label() == "soft")


def framed(figure):
    centres = [(axes, *(patch.get_center())) for axes in panels(figure) for patch in axes.patches]
    return {shown_state(*centre) for centre in centres}


def letters(figure):
    return {
        shown_state(axes, *text.get_position()): text.get_text()
        for axes in panels(figure)
        for text in axes.texts
    }


def test_frames_mark_the_states_that_differ_from_optimal():
    """A chart with rows upside down, or the ace in the first column, would frame other states than those
    wrong."""
    wrong = {(14, 10, 0), (20, 1, 0), (4, 2, 0), (18, 9, 1), (12, 1, 1)}
    policy = np.array([1 - p if state in wrong else p for state, p in zip(STATES, OPTIMAL, strict=True)])
    assert framed(strategy_chart(policy)) == wrong


def test_the_optimal_policy_has_no_frames():
    """A comparison of probabilities instead of actions would frame a policy that is right but not sure."""
    unsure = 0.4 + 0.2 * OPTIMAL
    assert framed(strategy_chart(unsure)) == set()


def test_letters_and_colors_show_each_state():
    """A letter or a color that belongs to a neighbouring state misleads whoever reads the chart."""
    policy = np.random.default_rng(0).random(280)
    figure = strategy_chart(policy)
    assert letters(figure) == {
        state: "H" if p > 0.5 else "S" for state, p in zip(STATES, policy, strict=True)
    }
    for axes in panels(figure):
        for (row, column), shown in np.ndenumerate(axes.images[0].get_array()):
            assert shown == policy[STATES.index(shown_state(axes, column, row))]


def test_high_totals_on_top_and_the_ace_last():
    """The chart that players know has 21 on top and the ace on the right."""
    hard, soft = panels(strategy_chart(OPTIMAL))
    assert [label.get_text() for label in hard.get_xticklabels()] == [
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8",
        "9",
        "10",
        "A",
    ]
    assert [label.get_text() for label in soft.get_yticklabels()] == [
        str(total) for total in range(21, 11, -1)
    ]
    assert hard.get_ylim()[0] > hard.get_ylim()[1]  # row 0 is drawn on top


def test_title_and_exact_figures_are_in_the_figure():
    """A chart without its value and agreement, or under another policy's, cannot be compared with the next
    one."""
    texts = " ".join(text.get_text() for text in strategy_chart(np.zeros(280), title="update $3$").texts)
    assert "update $3$" in texts
    assert "-0.1864" in texts  # always stay
    assert "39.3%" in texts  # 110 / 280


def test_chart_array_is_an_rgb_image():
    """TensorBoard takes [height, width, 3] of uint8; a transposed, float or blank image shows as noise or
    nothing."""
    image = chart_array(strategy_chart(OPTIMAL))
    assert image.shape == (700, 900, 3)
    assert image.dtype == np.uint8
    assert image[200, 100:400].std() > 20


def test_a_policy_of_another_size_is_refused():
    """Probabilities of the visited states only must not be drawn as if they were all."""
    with pytest.raises(ValueError, match="280"):
        strategy_chart(np.zeros(100))


def test_pyplot_does_not_hold_the_figure():
    """Pyplot would keep every figure of a long run alive, and draws in the main thread only."""
    before = pyplot.get_fignums()
    chart_array(strategy_chart(OPTIMAL))
    assert pyplot.get_fignums() == before
