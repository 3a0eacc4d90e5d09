"""Episodes as pictures of their tokens: those that the policy chose stand out, with their advantages."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, Literal, NamedTuple

import lightning as L
import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_hex
from PIL import Image, ImageDraw, ImageFont

from lgym.callbacks.log_media import log_picture
from lgym.plain_text import escape_control_chars
from lgym.types import TokenTrace

PROMPT_HEAD, PROMPT_TAIL = (
    60,
    200,
)  # tokens of a long stretch of prompt that are shown, at its start and its end
MAX_HEIGHT = 4000  # of a picture, in pixels
_COLORS = LinearSegmentedColormap.from_list(
    "", ["#C8452F", "white", "#2369BD"], N=257
)  # odd: one of them is white
_MARGIN, _PLAIN_ROW, _BOX_ROW, _NOTE_TOP = 12, 21, 34, 18  # pixels


@dataclass(frozen=True)
class ShownToken:
    """A token that the policy chose (`sampled`), that was put into its answer (`forced`), or neither
    (`prompt`)."""

    text: str
    kind: Literal["prompt", "sampled", "forced"]
    advantage: float | None = None
    logprob: float | None = None


class _Style(NamedTuple):
    ink: str
    fill: str | None = None
    hatch: str | None = None
    font: str = "DejaVuSansMono.ttf"


_LABEL, _TITLE, _NOTICE = (
    _Style("#202020"),
    _Style("#000000", font="DejaVuSansMono-Bold.ttf"),
    _Style("#8B1A8B"),
)
_PROMPT, _FORCED, _UNKNOWN = (
    _Style("#666666"),
    _Style("#5A4300", "#FFF4B8", "#D9B428"),
    _Style("#202020", "#CFCFCF"),
)


class _Box(NamedTuple):
    text: str
    style: _Style
    note: str = ""
    tokens: int = 0  # that it stands for


@dataclass(eq=False)
class TokenTraceLogger(L.Callback):
    """Draws some episodes of a rollout to TensorBoard's images: prompt tokens, forced tokens, and chosen
    tokens with their advantages.

    Args:
        every_n_rollouts: interval.
    """

    every_n_rollouts: int = 5
    _episodes: Sequence[Sequence[TokenTrace]] = field(init=False, default=())

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 0:
            self._episodes = batch.token_traces

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        episodes = self._episodes
        due = trainer.current_epoch % self.every_n_rollouts == 0
        if episodes and due and trainer.loggers:
            titles = [f"Rollout {trainer.current_epoch + 1}, episode {i + 1}" for i in range(len(episodes))]
            picture = token_picture([shown_tokens(turns, pl_module.tokenizer) for turns in episodes], titles)
            log_picture(trainer, "tokens", picture)


def shown_tokens(turns: Sequence[TokenTrace], tokenizer: Any) -> list[ShownToken]:
    """An episode's tokens in reading order; a prompt that extends the turn before contributes its new tokens
    only."""
    shown: list[ShownToken] = []
    context: tuple[int, ...] = ()
    for turn in turns:
        known = len(context) if turn.prompt_ids[: len(context)] == context else 0
        shown += [ShownToken(tokenizer.decode([token_id]), "prompt") for token_id in turn.prompt_ids[known:]]
        for token_id, chosen, logprob, advantage in zip(
            turn.token_ids, turn.action_mask, turn.logprobs, turn.advantages, strict=True
        ):
            text = tokenizer.decode([token_id])
            shown.append(
                ShownToken(text, "sampled", advantage, logprob) if chosen else ShownToken(text, "forced")
            )
        context = turn.prompt_ids + turn.token_ids
    return shown


def token_picture(
    episodes: Sequence[Sequence[ShownToken]], titles: Sequence[str], *, width: int = 1100
) -> np.ndarray:
    """Draws the episodes' text, a box per token, for TensorBoard's `add_image(dataformats="HWC")`.

    Prompt: grey text without a box. Forced: yellow, hatched. Sampled: red for a negative advantage, white for
    0, blue for a positive one, on one scale symmetric about 0; grey where there is no finite advantage; below
    it the log-probability. What is not printable is shown as an escape. Of each stretch of prompt only the
    first `PROMPT_HEAD` and the last `PROMPT_TAIL` tokens are shown; a picture that would be higher than
    `MAX_HEIGHT` ends with the number of tokens left out.

    Returns:
        [height, width, 3] of uint8.

    Raises:
        ValueError: if titles and episodes differ in number.
    """
    sampled = [token.advantage for episode in episodes for token in episode if token.kind == "sampled"]
    scale = max((abs(a) for a in sampled if a is not None and math.isfinite(a)), default=0.0) or 1.0
    paragraphs = _legend(scale)
    for title, episode in zip(titles, episodes, strict=True):
        paragraphs += [
            [_Box(" ", _LABEL)],
            [_Box(title, _TITLE)],
            _boxes(episode, scale) or [_Box("(no tokens)", _NOTICE)],
        ]
    image, top, missing = Image.new("RGB", (width, MAX_HEIGHT), "white"), _MARGIN, sum(map(len, episodes))
    for row in _rows(paragraphs, width - 2 * _MARGIN):
        if top + _BOX_ROW + _PLAIN_ROW + _MARGIN > MAX_HEIGHT:
            top += _draw(image, [_Box(f"… {missing} more tokens left out …", _NOTICE)], top)
            break
        top += _draw(image, row, top)
        missing -= sum(box.tokens for box in row)
    return np.array(image.crop((0, 0, width, top + _MARGIN)))


def _legend(scale: float) -> list[list[_Box]]:
    steps = [
        _Box(f"{part * scale:+.3g}" if part else "0", _color(part * scale, scale))
        for part in (-1, -0.5, 0, 0.5, 1)
    ]
    sampled = [_Box("sampled, by advantage: ", _LABEL), *steps, _Box(" none: ", _LABEL), _Box("  ", _UNKNOWN)]
    forced = _Box("forced, not chosen by the policy", _FORCED)
    return [[_Box("prompt ", _PROMPT), forced], [*sampled, _Box(" small type: log-probability", _LABEL)]]


def _color(advantage: float | None, scale: float) -> _Style:
    if advantage is None or not math.isfinite(advantage):
        return _UNKNOWN
    fill = _COLORS((advantage / scale + 1) / 2)
    return _Style("#FFFFFF" if np.dot(fill[:3], (0.3, 0.59, 0.11)) < 0.55 else "#202020", to_hex(fill))


def _boxes(episode: Sequence[ShownToken], scale: float) -> list[_Box]:
    boxes: list[_Box] = []
    for kind, stretch in groupby(episode, key=lambda token: token.kind):
        part = [_box(token, scale) for token in stretch]
        hidden = len(part) - PROMPT_HEAD - PROMPT_TAIL
        if kind == "prompt" and hidden > 0:
            part[PROMPT_HEAD:-PROMPT_TAIL] = [_Box(f" … {hidden} tokens … ", _NOTICE, tokens=hidden)]
        boxes += part
    return boxes


def _box(token: ShownToken, scale: float) -> _Box:
    if token.kind != "sampled":
        return _Box(token.text, _FORCED if token.kind == "forced" else _PROMPT, tokens=1)
    note = "" if token.logprob is None else f"{round(token.logprob, 2) + 0.0:g}"
    return _Box(token.text, _color(token.advantage, scale), note, 1)


def _rows(paragraphs: Sequence[Sequence[_Box]], width: int) -> Iterator[list[_Box]]:
    """Boxes line by line; a box is cut where it is too long and after its newlines."""
    longest = max(1, int(width / _font(_LABEL.font).getlength("0")) - 3)
    for paragraph in paragraphs:
        row: list[_Box] = []
        for box in paragraph:
            text = escape_control_chars(box.text.replace("\n", "⏎"))
            for cut in re.finditer(f"[^⏎]{{1,{longest}}}⏎{{0,2}}|⏎{{1,{longest}}}|^$", text):
                piece = box._replace(text=cut[0]) if cut.start() == 0 else _Box(cut[0], box.style)
                ended = row and row[-1].text.endswith("⏎") and not piece.text.startswith("⏎")
                if row and (ended or sum(map(_width, [*row, piece])) > width):
                    yield row
                    row = []
                row.append(piece)
        yield row


def _draw(image: Image.Image, row: Sequence[_Box], top: int) -> int:
    """Draws one line; returns its height."""
    draw, left, bottom = ImageDraw.Draw(image), _MARGIN, top + _BOX_ROW - 4
    for box in row:
        right = left + _width(box) - 2
        if box.style.fill:
            draw.rectangle((left, top, right, bottom), box.style.fill, box.style.hatch or "#8A8A8A")
        for x in range(left, right, 4) if box.style.hatch else ():
            reach = min(bottom - top - _NOTE_TOP, right - x)
            draw.line((x, bottom, x + reach, bottom - reach), box.style.hatch)
        indent = left + 2 * bool(box.style.fill)
        draw.text((indent, top + 1), box.text, box.style.ink, _font(box.style.font))
        draw.text((indent, top + _NOTE_TOP), box.note, box.style.ink, _font("DejaVuSans.ttf", 9))
        left = right + 2
    return _BOX_ROW if any(box.style.fill for box in row) else _PLAIN_ROW


def _width(box: _Box) -> int:
    text, note = _font(box.style.font).getlength(box.text), _font("DejaVuSans.ttf", 9).getlength(box.note)
    return math.ceil(max(text, note, 4)) + (6 if box.style.fill else 1)


@cache
def _font(name: str, size: int = 14) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(
        f"{matplotlib.get_data_path()}/fonts/ttf/{name}", size, layout_engine=ImageFont.Layout.BASIC
    )
