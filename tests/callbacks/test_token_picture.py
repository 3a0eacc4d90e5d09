"""The picture of tokens, read back from its pixels."""

import numpy as np
import pytest

from lgym.callbacks import token_picture as module
from lgym.callbacks.token_picture import MAX_HEIGHT, PROMPT_HEAD, PROMPT_TAIL, ShownToken, token_picture

RED, WHITE, BLUE, GREY, YELLOW = (
    (200, 69, 47),
    (255, 255, 255),
    (35, 105, 189),
    (207, 207, 207),
    (255, 244, 184),
)
LEGEND = token_picture([], []).shape[0] - 12  # without the margin below


def sampled(text, advantage, logprob=None):
    return ShownToken(text, "sampled", advantage, logprob)


def prompt(text):
    return ShownToken(text, "prompt", None, None)


def forced(text):
    return ShownToken(text, "forced", None, None)


def body(*tokens, **options):
    """What is drawn below the legend."""
    return token_picture([tokens], ["title"], **options)[LEGEND:]


def counts(image):
    """How many pixels of each color."""
    colors, number = np.unique(image.reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(int(part) for part in color): int(n) for color, n in zip(colors, number, strict=True)}


def shown_texts(monkeypatch, *tokens, **options):
    """The text of each drawn box, line by line."""
    lines, draw = [], module._draw

    def spy(image, row, top):
        lines.append([box.text for box in row])
        return draw(image, row, top)

    monkeypatch.setattr(module, "_draw", spy)
    token_picture([tokens], ["title"], **options)
    return lines[lines.index(["title"]) + 1 :]


@pytest.mark.parametrize(
    ("advantage", "color"),
    [(-2.0, RED), (2.0, BLUE), (None, GREY), (float("nan"), GREY), (float("-inf"), GREY)],
)
def test_a_sampled_token_has_the_color_of_its_advantage(advantage, color):
    """Signs the wrong way round, or a missing advantage drawn as 0, would hide what is learned."""
    shown = counts(body(sampled("        ", advantage)))
    assert shown.get(color, 0) > 1000
    assert not any(shown.get(other, 0) for other in {RED, BLUE, GREY, YELLOW} - {color})


def test_the_scale_is_symmetric_and_of_the_whole_picture():
    """A scale of each episode, or from the smallest to the largest advantage, would make unlike tokens alike.

    Half of the way from white to blue is (255 + 35) / 2 = 145, (255 + 105) / 2 = 180, (255 + 189) / 2 = 222.
    """
    image = token_picture(
        [[sampled("        ", -4.0)], [sampled("        ", 2.0), sampled("        ", 0.0)]], ["", ""]
    )
    shown = counts(image[LEGEND:])
    assert shown[RED] > 1000
    half = max((n, color) for color, n in shown.items() if color not in (RED, WHITE))[1]
    assert half == pytest.approx((145, 180, 222), abs=1)
    assert BLUE not in shown


def test_forced_is_yellow_and_prompt_has_no_box():
    """A token that the template put in must look like neither what the policy said nor what it read."""
    assert counts(body(forced("        ")))[YELLOW] > 500
    assert (
        counts(body(forced("        ")))[217, 180, 40] > 300
    )  # hatched; the outline alone has about 200 pixels
    assert np.array_equal(body(prompt("        "))[:34], body(prompt(""))[:34])  # nothing but the title
    drawn = counts(body(prompt("prompt")))
    assert min(drawn) == (0, 0, 0)  # the title
    assert (102, 102, 102) in drawn
    assert all(max(color) - min(color) == 0 for color in drawn)  # grey


@pytest.mark.parametrize("kind", ["prompt", "forced"])
def test_a_wrong_mask_changes_the_picture(kind):
    """A mask that misses a token, or takes one of the template's, is what the picture is for."""
    right = [prompt("Your hand is 14."), sampled("hit", 1.0, -0.5), forced("<|im_end|>")]
    wrong = [right[0], ShownToken("hit", kind, 1.0, -0.5), right[2]]
    assert BLUE in counts(body(*right))
    assert BLUE not in counts(body(*wrong))


def test_the_log_probability_is_below_a_sampled_token():
    """Without it a token that the policy hardly believed in looks like any other."""
    without, likely, rare = (body(sampled("hit", 1.0, logprob)) for logprob in (None, -0.001, -9.25))
    assert not np.array_equal(without, likely)
    assert not np.array_equal(likely, rare)
    assert np.array_equal(body(forced("hit")), body(ShownToken("hit", "forced", None, -9.25)))


HOSTILE = [
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "\x00\x01\x7f\x9b",
    "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd",
    "\U0001f3b2\U0001f0a1 \U00020000",
    "\ud83d",
    "e" + "\u0301" * 500,
    "\u0301",
    "\ufffd\u200b\u2028\u0085\r\t\x0b",
    "$x^2_{",
    "[^⏎]{1,2}",
    "x" * 5000,
    "",
]


@pytest.mark.parametrize("kind", ["prompt", "sampled", "forced"])
@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_can_be_drawn(text, kind):
    """A model says anything; a picture that raises would end the run."""
    image = token_picture([[ShownToken(text, kind, -0.5, float("-inf"))]], [text])
    assert image.dtype == np.uint8
    assert image.shape[1:] == (1100, 3)
    assert image.shape[0] <= MAX_HEIGHT


def test_a_token_without_text_is_seen():
    """A part of a character decodes to nothing, and is learned from all the same."""
    assert counts(body(sampled("", 1.0)))[BLUE] > 50


def test_what_is_not_printable_is_escaped(monkeypatch):
    """Characters that have no glyph, or turn the text's direction, would show another text than the
    policy's."""
    assert shown_texts(monkeypatch, sampled("\x1b[0m\x00\u202e\ud83d\tä", 0.0)) == [
        ["\\x1b[0m\\x00\\u202e\\ud83d\\tä"]
    ]


def test_a_newline_is_visible_and_ends_the_line(monkeypatch):
    """A newline token that is not drawn cannot be seen to be forced or sampled."""
    ends = [sampled("a\nb", 1.0), sampled("\n", 1.0), sampled("\n", 1.0)]
    assert shown_texts(monkeypatch, forced("\n\n"), *ends, prompt("c")) == [
        ["⏎⏎"],
        ["a⏎"],
        ["b", "⏎", "⏎"],
        ["c"],
    ]
    many = shown_texts(monkeypatch, sampled("a\n\n\n\nb", 1.0))
    assert "".join(text for line in many for text in line) == "a⏎⏎⏎⏎b"


def test_lines_end_at_the_width_and_lose_nothing(monkeypatch):
    """A box beyond the right edge would be cut off in silence."""
    words = [f" word{i}" for i in range(100)] + ["x" * 300]
    lines = shown_texts(monkeypatch, *[sampled(word, 1.0) for word in words], width=400)
    assert "".join(text for line in lines for text in line) == "".join(words)
    assert len(lines) > 10
    picture = token_picture([[sampled(word, 1.0) for word in words]], ["title"], width=400)
    assert (picture[LEGEND:, -12:] == 255).all()  # the margin
    assert not (picture[LEGEND:, -60:-12] == 255).all()


def test_long_prompts_are_shortened_in_the_middle(monkeypatch):
    """The start tells which prompt it is and the end what was asked last; what the policy said is never left
    out."""
    words = [f"{i};" for i in range(1000)]
    texts = shown_texts(monkeypatch, *map(prompt, words), *(sampled("a", 1.0) for _ in range(500)))
    flat = [text for line in texts for text in line]
    assert flat[:PROMPT_HEAD] == words[:PROMPT_HEAD]
    assert flat[PROMPT_HEAD] == " … 740 tokens … "  # 1000 - 60 - 200
    assert flat[PROMPT_HEAD + 1 : -500] == words[-PROMPT_TAIL:]
    assert flat[-500:] == ["a"] * 500
    just = list(map(prompt, words[: PROMPT_HEAD + PROMPT_TAIL]))
    assert [t for line in shown_texts(monkeypatch, *just) for t in line] == words[: PROMPT_HEAD + PROMPT_TAIL]


def test_the_height_is_bounded_and_the_rest_counted(monkeypatch):
    """A picture of a whole rollout would fill the log, and one cut off in silence would pass for all of
    it."""
    tokens = [prompt("p") for _ in range(300)] + [sampled("word\n", 1.0) for _ in range(1000)]
    assert MAX_HEIGHT - 80 < token_picture([tokens], ["title"]).shape[0] <= MAX_HEIGHT
    lines = shown_texts(monkeypatch, *tokens)
    drawn = lines.count(["word⏎"])  # the first one stands in the prompt's line
    assert lines[-1] == [f"… {1000 - drawn - 1} more tokens left out …"]


def test_an_episode_without_tokens_says_so(monkeypatch):
    """Nothing below a title would look like a fault of the picture."""
    assert shown_texts(monkeypatch) == [["(no tokens)"]]


def test_the_legend_names_the_ends_of_the_scale(monkeypatch):
    """Colors without numbers cannot be compared with those of the next rollout."""
    lines, draw = [], module._draw
    monkeypatch.setattr(
        module, "_draw", lambda image, row, top: lines.append([b.text for b in row]) or draw(image, row, top)
    )
    token_picture([[sampled("a", 0.25), sampled("b", -1.5)]], ["title"])
    assert lines[1][1:6] == ["-1.5", "-0.75", "0", "+0.75", "+1.5"]


def test_titles_and_episodes_must_be_equally_many():
    """A title above another episode misleads."""
    with pytest.raises(ValueError, match="zip"):
        token_picture([[], []], ["one"])
