"""From an observation's text to the tokens that the policy is asked with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jinja2 import TemplateError

from lgym.batch import Context
from lgym.plain_text import MARK, SpecialTokenEscaper, fit_to_tokens, replace_surrogates, truncate_middle
from lgym.types import ConfigError, Message

CACHED_TOKENS = 10_000_000
"""Tokens of all contexts that a builder keeps, about 40 bytes each. Beyond it forgets them and starts anew, in the middle of
a rollout too: contexts are equal by what they ask, so that nothing but time is lost."""

CHARACTERS_PER_TOKEN = 10
"""An observation is cut to so many characters for each token of the model's context before anything is encoded."""


class ContextBuilder:
    """Renders and tokenises each distinct observation once.

    The chat template is rendered as text and encoded without adding special tokens, since the template has written
    them already: no doubled BOS. A template that refuses a system role gets the system prompt in the user's message.

    Only the template writes the tokenizer's own tokens, such as those that begin and end turns: what messages and candidates
    spell is plain text (`SpecialTokenEscaper`). An observation that is too long loses its middle (`lgym.plain_text.truncate_middle`).
    """

    def __init__(
        self, tokenizer: Any, system_prompt: str, context_length: int, max_observation_tokens: int | None = None
    ) -> None:
        """
        Args:
            tokenizer: the model's.
            system_prompt: what every prompt begins with.
            context_length: the longest prompt, with its longest candidate, in tokens.
            max_observation_tokens: of one observation; `None` takes what the context leaves.
        """
        self._tokenizer = tokenizer
        self._escaper = SpecialTokenEscaper(tokenizer)
        self._max_observation_tokens = max_observation_tokens
        self._system_prompt = system_prompt
        self._context_length = context_length
        self._contexts: dict[tuple[Any, tuple[str, ...]], Context] = {}
        self._tokens = 0  # in them
        self._takes_system_role = self._renders(self._messages((), "", system_role=True))

    def context(self, observation_text: str, candidates: Sequence[str]) -> Context:
        """The context of an observation; the same object for the same question while that is kept.

        Raises:
            ValueError: if candidates repeat or tokenise alike, or with nothing of the observation the prompt is longer than
                the model's context.
        """
        key = (observation_text, tuple(candidates))
        known = self._contexts.get(key)
        if known is not None:
            return known
        observation_text = replace_surrogates(observation_text)
        read = self.readable(observation_text)
        ids = self.encode(self.render((), read))
        if not self.fits(ids, candidates):
            read = self.readable(observation_text, candidates)
            ids = self.encode(self.render((), read))
        context = self._context(ids, read, key[1], shortened=read != observation_text)
        self._remember(key, context)
        return context

    def with_prompt(
        self, prompt_ids: tuple[int, ...], observation_text: str, candidates: Sequence[str], *, shortened: bool
    ) -> Context:
        """The context of a prompt that is longer than its observation, which `shortened` says to be what `readable` left of
        it; as `context`.

        Raises:
            ValueError: as `context`.
        """
        key = (prompt_ids, tuple(candidates))
        context = self._contexts.get(key)
        if context is None:
            context = self._context(prompt_ids, observation_text, key[1], shortened=shortened)
            self._remember(key, context)
        return context

    def readable(self, observation_text: str, candidates: Sequence[str] | None = None) -> str:
        """As much of an observation as `max_observation_tokens` and `CHARACTERS_PER_TOKEN` allow; given its candidates, as
        fits a prompt of its own with the longest of them."""
        kept = min(len(observation_text), CHARACTERS_PER_TOKEN * self._context_length)
        if self._max_observation_tokens is not None:
            kept = fit_to_tokens(observation_text, lambda text: len(self._escaper.token_ids(text)), self._max_observation_tokens, kept)
        if candidates is not None:
            room = self._context_length - self.longest(candidates)
            kept = fit_to_tokens(observation_text, lambda text: len(self.encode(self.render((), text))), room, kept)
        return truncate_middle(observation_text, kept)

    def render(self, turns: Sequence[tuple[str, str]], observation_text: str) -> str:
        """The prompt as text: earlier observations and replies, and the observation to answer. With marks (`SpecialTokenEscaper`)."""
        messages = self._messages(turns, observation_text, system_role=self._takes_system_role)
        text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        if any(self._escaper.may_complete_special_token(message["content"]) for message in messages):  # the template may complete what it spells
            apart = [{**message, "content": _apart(message["content"])} for message in messages]
            marked = self._tokenizer.apply_chat_template(apart, add_generation_prompt=True, tokenize=False)
            if self._escaper.special_ids(marked) != self._escaper.special_ids(text):
                return marked
        return text

    def reply_text(self, text: str, ids: Collection[int] = ()) -> str:
        """A reply as `render` takes it: plain text, but for markup such as `<think>` that is among the tokens that said it.
        Special tokens that were among them are not in its text."""
        return self._escaper.escape(text, self._escaper.markup_ids.intersection(ids))

    def fits(self, prompt_ids: tuple[int, ...], candidates: Sequence[str]) -> bool:
        """Whether the model can take a prompt with its longest candidate."""
        return len(prompt_ids) + self.longest(candidates) <= self._context_length

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of rendered text."""
        return self._escaper.encode(text)

    def longest(self, candidates: Iterable[str]) -> int:
        """The tokens of the longest candidate."""
        return max((len(self._escaper.token_ids(candidate)) for candidate in candidates), default=0)

    def decode(self, token: int) -> str:
        return self._tokenizer.decode([token])

    def is_special(self, token: int) -> bool:
        return token in self._tokenizer.all_special_ids

    def _context(
        self, prompt_ids: tuple[int, ...], observation_text: str, candidates: tuple[str, ...], *, shortened: bool
    ) -> Context:
        context = Context(
            prompt_ids=prompt_ids,
            candidate_ids=tuple(map(self._escaper.token_ids, candidates)),
            candidates=candidates,
            observation_text=observation_text,
            shortened=shortened,
        )
        self._check(context)
        return context

    def _remember(self, key: tuple[Any, tuple[str, ...]], context: Context) -> None:
        size = len(context.prompt_ids) + sum(map(len, context.candidate_ids))
        if self._tokens + size > CACHED_TOKENS:
            self._contexts.clear()
            self._tokens = 0
        self._contexts[key] = context
        self._tokens += size

    def _messages(self, turns: Sequence[tuple[str, str]], observation_text: str, *, system_role: bool) -> list[Message]:
        observations = [*(observation for observation, _ in turns), observation_text]
        if not system_role:
            observations[0] = f"{self._system_prompt}\n\n{observations[0]}"
        system = self._escaper.escape(self._system_prompt)
        messages: list[Message] = [{"role": "system", "content": system}] if system_role else []
        quoted = list(map(self._escaper.escape, observations))
        for observation, (_, reply) in zip(quoted, turns, strict=False):
            messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": reply}]
        return [*messages, {"role": "user", "content": quoted[-1]}]

    def _renders(self, messages: list[Message]) -> bool:
        try:
            self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except TemplateError:
            return False
        return True

    def _check(self, context: Context) -> None:
        seen: dict[tuple[int, ...], str] = {}
        for text, ids in zip(context.candidates, context.candidate_ids, strict=True):
            if not ids:
                raise ConfigError(f"The candidate {text!r} has no tokens; every candidate needs some text.")
            if ids in seen:
                raise ConfigError(
                    f"The candidates {seen[ids]!r} and {text!r} are the same tokens to this model, so it cannot choose "
                    f"between them (observation: {context.observation_text!r}). Word them differently."
                )
            seen[ids] = text
        longest = len(context.prompt_ids) + max((len(ids) for ids in context.candidate_ids), default=0)
        if longest > self._context_length:
            raise ConfigError(
                f"A prompt with its longest candidate has {longest} tokens, more than the {self._context_length} that the "
                "model's context leaves beside its reply, with next to nothing of the observation. Shorten the system "
                "prompt or the candidates, or choose a model with a longer context. The observation read: "
                f"{context.observation_text[:200]!r}"
            )


def _apart(text: str) -> str:
    """The text with marks round it, within the white space at its ends, which a template may take off."""
    core = text.strip()
    return text.replace(core, f"{MARK}{core}{MARK}") if core else MARK + text
