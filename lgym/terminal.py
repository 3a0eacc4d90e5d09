"""Terminal output: colors where they are wanted, and text of others that cannot act on the terminal."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from lgym import distributed
from lgym.plain_text import escape_control_chars
from lgym.types import Turn

ASCII = str.maketrans({"│": "|", "█": "#", "⏎": "\\n", "±": "+-", "→": "->", "…": "..."})
BAR_AFTER = 2.0  # seconds
BAR_WIDTH = 20  # characters of a probability of 1
GREYS, GREENS = ("48;5;236", "48;5;240"), ("48;5;22", "48;5;28")
_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")


def use_color() -> bool:
    """True if standard output is a terminal whose user has not switched colors off (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def say(text: str = "") -> None:
    """Prints a line in the terminal's encoding; of several processes only the first prints."""
    if distributed.rank():
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(ASCII).encode(encoding, errors="backslashreplace").decode(encoding)
    print(text, flush=True)


def one_line(text: str) -> str:
    """Text without control characters, newlines shown as a mark."""
    return escape_control_chars(text).replace("\n", " ⏎ ")


def sanitize_rendering(text: str) -> str:
    """An environment's rendering as text: colors stay where they are wanted, other control characters are
    escaped."""
    pieces = _COLOR.split(text)  # every second one is a color
    pieces[::2] = map(escape_control_chars, pieces[::2])
    return "".join(pieces if use_color() else pieces[::2])


def paint(text: str, style: str) -> str:
    """Text in an ANSI style such as '1' (bold), line by line; unchanged without colors."""
    if not use_color():
        return text
    return "\n".join(f"\x1b[{style}m{line}\x1b[0m" if line else line for line in text.split("\n"))


def format_tokens(texts: Iterable[str], *, chosen: Iterable[bool] | None = None) -> str:
    """Tokens with their borders, those that the policy chose marked.

    With colors two shades alternate, grey for prompt tokens and green for chosen ones. Without colors │
    separates tokens and [ ] encloses chosen ones.
    """
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
    """A line per candidate: its probability as a number and a bar, and a mark at the one that was taken."""
    names = {text: one_line(text) for text in probabilities}
    width = max(map(len, names.values()), default=0)
    return [
        f"{'→' if text == taken else ' '} {paint(f'{names[text]:<{width}}', '1' if text == taken else '0')}  "
        f"{p:6.1%} {paint('█' * round(BAR_WIDTH * p), '32')}".rstrip()
        for text, p in probabilities.items()
    ]


def format_turn(turn: Turn, note: str = "") -> str:
    """A turn in lines: observation, candidates with their probabilities or the response, and the reward."""
    lines = [escape_control_chars(turn.observation_text)]
    lines += probability_bars(turn.probabilities, turn.response_text) or [f"→ {one_line(turn.response_text)}"]
    value = "" if turn.value is None else f", value before it {turn.value:+.3f}"
    return "\n".join([*lines, f"  reward {turn.reward:+g}{value}{note}"])


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Context manager of a bar on a terminal, once two seconds have passed; yields what to call with the part
    that is done and the whole."""
    shown = tqdm(
        desc=what, total=1, leave=False, delay=BAR_AFTER, disable=None, file=sys.stderr, dynamic_ncols=True
    )

    def update(done: int, total: int) -> None:
        shown.total = total
        shown.update(done - shown.n)

    with shown:
        yield update
