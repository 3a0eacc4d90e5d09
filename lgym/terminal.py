"""What goes to a terminal: colours where they are wanted, and the text of others made harmless."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

from lgym import ranks
from lgym.types import Turn

PLAIN = str.maketrans({"│": "|", "█": "#", "⏎": "\\n", "±": "+-", "→": "->", "…": "..."})
"""For a terminal that cannot show more than its own alphabet."""

BAR = 20  # characters of a probability of 1
GREYS, GREENS = ("48;5;236", "48;5;240"), ("48;5;22", "48;5;28")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def use_color() -> bool:
    """Whether standard output is a terminal whose user has not asked for none (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(text: str = "") -> None:
    """Prints a line, whatever the terminal's alphabet; of several processes only the first."""
    if ranks.rank():
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(PLAIN).encode(encoding, errors="backslashreplace").decode(encoding)
    print(text, flush=True)


def escape_control_chars(text: str) -> str:
    """Text that no terminal acts on: newlines stay, and what else is not printable is written as an escape."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    return escape_control_chars(text).replace("\n", " ⏎ ")


def sanitize_rendering(text: str) -> str:
    """An environment's own picture in text: its colours stay where there are any, and nothing else that would act."""
    pieces = re.split(f"({_COLOUR.pattern})", text)
    return "".join((piece if use_color() else "") if i % 2 else escape_control_chars(piece) for i, piece in enumerate(pieces))


def paint(text: str, style: str) -> str:
    """Text in a style of the terminal's, such as '1' (bold), a line at a time; as it is where there are no colours."""
    if not use_color():
        return text
    return "\n".join(f"\x1b[{style}m{line}\x1b[0m" if line else line for line in text.split("\n"))


def format_tokens(texts: Iterable[str], *, chosen: Iterable[bool] | None = None) -> str:
    """Tokens with their borders. In colour two shades alternate, grey for what was fed and green for what the policy
    chose; without, │ stands between tokens and [ ] round chosen ones."""
    texts = list(texts)
    marks = [False] * len(texts) if chosen is None else list(chosen)
    shown = ""
    for i, (text, mark) in enumerate(zip(texts, marks, strict=True)):
        text = escape_control_chars(text).replace("\n", "⏎\n")
        if use_color():
            shown += paint(text, (GREENS if mark else GREYS)[i % 2])
        elif mark:
            shown += f"[{text}]"
        else:
            shown += text + ("│" if i + 1 < len(texts) and not marks[i + 1] else "")
    return shown


def probability_bars(probabilities: dict[str, float], taken: str | None = None) -> list[str]:
    """A line a candidate: its probability as a number and a bar, and a mark at the one that was taken."""
    names = {text: one_line(text) for text in probabilities}
    width = max(map(len, names.values()), default=0)
    return [
        f"{'→' if text == taken else ' '} {paint(f'{names[text]:<{width}}', '1' if text == taken else '0')}  "
        f"{p:6.1%} {paint('█' * round(BAR * p), '32')}".rstrip()
        for text, p in probabilities.items()
    ]


def format_turn(turn: Turn, note: str = "") -> list[str]:
    """A turn: what the model read, what it might have answered and did, and what that was paid."""
    lines = [escape_control_chars(turn.observation_text)]
    lines += probability_bars(turn.probabilities, turn.response_text) or [f"→ {one_line(turn.response_text)}"]
    value = "" if turn.value is None else f", value before it {turn.value:+.3f}"
    return [*lines, f"  reward {turn.reward:+g}{value}{note}"]
