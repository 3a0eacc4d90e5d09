"""What the model is shown of an episode: the turn in hand, behind as many earlier ones as are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lgym.batch import Context
from lgym.data.chat import ContextBuilder
from lgym.plain_text import replace_surrogates
from lgym.types import Said

History = int | Literal["full"]


class Conversation:
    """The prompts of one episode.

    Append-only: what the model was fed and what it said stay the tokens that they were, and the next prompt is these with
    the template's text for what is new behind them. Where that is not what the template makes of the conversation (it trims
    replies, drops earlier thinking, or the window has moved on), a new transcript starts: the whole is rendered and encoded
    anew. If it grows too long for the model, the older half of its turns is left out at once: were it one turn after the
    other, no prompt would go on from the one before, and each would be computed from its first token.
    """

    def __init__(self, builder: ContextBuilder, history: History) -> None:
        """
        Args:
            builder: renders and encodes.
            history: how many earlier turns are shown, 0 for none, or `full`.
        """
        self._builder = builder
        self._history = history
        self._turns: list[tuple[str, str]] = []  # observations and replies, as the template is given them
        self._text = ""  # of the prompt in hand
        self._ids: tuple[int, ...] = ()
        self._observation = ""
        self._said: Said | None = None
        self._reply = ""  # the same as the template is given it
        self.transcripts = 0

    def context(self, observation_text: str, candidates: Sequence[str]) -> Context:
        """The question at an observation. One that is too long even by itself is shortened."""
        if self._history == 0:
            return self._builder.context(observation_text, candidates)
        whole = replace_surrogates(observation_text)
        observation_text = self._builder.readable(whole)
        shown = self._turns if self._history == "full" else self._turns[-self._history :]
        text = self._builder.render(shown, observation_text)
        ids = self._extended(text)
        anew = ids is None
        if ids is None:
            ids = self._builder.encode(text)
        while shown and not self._builder.fits(ids, candidates):
            shown = self._turns = shown[(len(shown) + 1) // 2 :]  # for good: many prompts can go on from this one
            text = self._builder.render(shown, observation_text)
            ids, anew = self._builder.encode(text), True
        self.transcripts += anew
        if not self._builder.fits(ids, candidates):
            observation_text = self._builder.readable(whole, candidates)
            text = self._builder.render((), observation_text)
            ids = self._builder.encode(text)
        self._text, self._ids, self._observation = text, ids, observation_text
        return self._builder.with_prompt(ids, observation_text, candidates, shortened=observation_text != whole)

    def reply(self, said: Said) -> None:
        """What the model said to the context asked last."""
        if self._history != 0:
            self._reply = self._builder.reply_text(said.text, said.ids[:-1] if said.ended else said.ids)
            self._turns.append((self._observation, self._reply))
            self._said = said

    def _extended(self, text: str) -> tuple[int, ...] | None:
        """The transcript's tokens with those of what is new in the template's text; `None` if that does not extend it."""
        said = self._said
        if said is None or not text.startswith(self._text + self._reply):
            return None
        new = text[len(self._text) + len(self._reply) :]
        if said.ended:
            end = self._builder.decode(said.ids[-1])
            if new.startswith(end):
                new = new[len(end) :]
            elif self._builder.is_special(said.ids[-1]):
                return None
        return self._ids + said.ids + self._builder.encode(new)
