"""From an observation's text to the tokens that the policy is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from lgym.batch import Context
from lgym.types import Message

CACHED_TOKENS = 10_000_000
"""Tokens of all contexts that a builder keeps, about 40 bytes each. Beyond it forgets them and starts anew; nothing but time
is lost."""


class ContextBuilder:
    """Renders and tokenises each distinct observation once.

    The chat template is rendered as text and encoded without adding special tokens, since the template has written
    them already: no doubled BOS. A template that refuses a system role gets the system prompt in the user's message.
    """

    def __init__(self, tokenizer: Any, system_prompt: str, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._system_prompt = system_prompt
        self._context_length = context_length
        self._contexts: dict[tuple[Any, tuple[str, ...]], Context] = {}
        self._tokens = 0  # in them
        self._takes_system_role = self._renders(self._messages((), "", system_role=True))

    def context(self, observation_text: str, candidates: Sequence[str]) -> Context:
        """The context of an observation; the same object for the same question.

        Raises:
            ValueError: if candidates repeat or tokenise alike, or the prompt is longer than the model's context.
        """
        key = (observation_text, tuple(candidates))
        known = self._contexts.get(key)
        if known is not None:
            return known
        context = self._context(self.encode(self.render((), observation_text)), observation_text, key[1])
        self._remember(key, context)
        return context

    def with_prompt(self, prompt_ids: tuple[int, ...], observation_text: str, candidates: Sequence[str]) -> Context:
        """The context of a prompt that is longer than its observation; the same object for the same question.

        Raises:
            ValueError: as `context`.
        """
        key = (prompt_ids, tuple(candidates))
        context = self._contexts.get(key)
        if context is None:
            context = self._context(prompt_ids, observation_text, key[1])
            self._remember(key, context)
        return context

    def render(self, turns: Sequence[tuple[str, str]], observation_text: str) -> str:
        """The prompt as text: earlier observations and replies, and the observation to answer."""
        messages = self._messages(turns, observation_text, system_role=self._takes_system_role)
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    def fits(self, prompt_ids: tuple[int, ...], candidates: Sequence[str]) -> bool:
        """Whether the model can take a prompt with its longest candidate."""
        return len(prompt_ids) + max((len(self.encode(c)) for c in candidates), default=0) <= self._context_length

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, token: int) -> str:
        return self._tokenizer.decode([token])

    def is_special(self, token: int) -> bool:
        return token in self._tokenizer.all_special_ids

    def _context(self, prompt_ids: tuple[int, ...], observation_text: str, candidates: tuple[str, ...]) -> Context:
        context = Context(
            prompt_ids=prompt_ids,
            candidate_ids=tuple(self.encode(candidate) for candidate in candidates),
            candidates=candidates,
            observation_text=observation_text,
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
        messages: list[Message] = [{"role": "system", "content": self._system_prompt}] if system_role else []
        for observation, (_, reply) in zip(observations, turns, strict=False):
            messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": reply}]
        return [*messages, {"role": "user", "content": observations[-1]}]

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
                raise ValueError(f"The candidate {text!r} has no tokens; every candidate needs some text.")
            if ids in seen:
                raise ValueError(
                    f"The candidates {seen[ids]!r} and {text!r} are the same tokens to this model, so it cannot choose "
                    f"between them (observation: {context.observation_text!r}). Word them differently."
                )
            seen[ids] = text
        longest = len(context.prompt_ids) + max((len(ids) for ids in context.candidate_ids), default=0)
        if longest > self._context_length:
            raise ValueError(
                f"A prompt with its longest candidate has {longest} tokens, more than the {self._context_length} that the "
                "model's context leaves beside its reply. "
                f"Shorten the system prompt or what the agent's format_observation says, or choose a model with a longer "
                f"context. The observation begins: {context.observation_text[:200]!r}"
            )
