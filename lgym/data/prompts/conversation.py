"""Prompts of one episode: the current observation behind as many earlier turns as are wanted."""

from collections.abc import Sequence
from typing import Literal

from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.plain_text import replace_surrogates
from lgym.rollout import Prompt, Response

History = int | Literal["full"]


class Conversation:
    """The prompts of one episode.

    Append-only: the prompts and responses stay the tokens that they were, and the next prompt is these with
    the template's text for what is new behind them. Where that is not what the template makes of the
    conversation (it trims responses, drops earlier thinking, or the window has moved on), a new transcript
    starts: the whole is rendered and encoded anew. If it grows too long for the model, the older half of its
    turns is left out at once: were it one turn after the other, no prompt would extend the one before, and
    each would be computed from its first token.

    Args:
        builder: renders and encodes.
        history: the number of earlier turns shown, 0 for none, or `full`.
    """

    def __init__(self, builder: PromptBuilder, history: History) -> None:
        self._builder = builder
        self._history = history
        self._turns: list[tuple[str, str]] = []  # observations and responses, as the template is given them
        self._observation = ""
        self._text = ""  # of the transcript: the last prompt with the response to it
        self._ids: tuple[int, ...] = ()
        self._end_id: int | None = None  # the token that ended the response's text
        self.transcripts = 1

    def prompt(self, observation_text: str, candidates: Sequence[str]) -> Prompt:
        """The prompt at an observation. One that is too long even by itself is shortened."""
        if self._history == 0:
            return self._builder.prompt(observation_text, candidates)
        full_text = replace_surrogates(observation_text)
        self._observation = self._builder.readable(full_text)
        shown = self._turns if self._history == "full" else self._turns[-self._history :]
        text = self._builder.render(shown, self._observation)
        extended = self._extended(text)
        ids = self._builder.encode(text) if extended is None else extended
        while shown and not self._builder.fits(ids, candidates):
            shown = self._turns = shown[(len(shown) + 1) // 2 :]  # for good: many prompts can extend this one
            text = self._builder.render(shown, self._observation)
            extended, ids = None, self._builder.encode(text)
        self.transcripts += extended is None
        if not self._builder.fits(ids, candidates):
            self._observation = self._builder.readable(full_text, candidates)
            text = self._builder.render((), self._observation)
            ids = self._builder.encode(text)
        self._text, self._ids = text, ids
        return self._builder.with_prompt(
            ids, self._observation, candidates, shortened=self._observation != full_text
        )

    def respond(self, response: Response) -> None:
        """Add the response to the last prompt."""
        if self._history != 0:
            ids = response.history_ids
            has_end = response.finished and response.choice < 0  # after a candidate there is no such token
            shown = self._builder.response_text(response.text, ids[:-1] if has_end else ids)
            self._turns.append((self._observation, shown))
            self._text += shown
            self._ids += ids
            self._end_id = ids[-1] if has_end else None

    def _extended(self, text: str) -> tuple[int, ...] | None:
        """The transcript's tokens with those of the template's new text; `None` if that does not extend
        it."""
        if not text.startswith(self._text):
            return None
        new_text = text[len(self._text) :]
        if self._end_id is not None:
            end = self._builder.tokenizer.decode([self._end_id])
            if not new_text.startswith(end) and self._end_id in self._builder.tokenizer.all_special_ids:
                return None
            new_text = new_text.removeprefix(end)
        return self._ids + self._builder.encode(new_text)
