"""From an observation's text to the tokens that the policy is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from lgym.batch import Context
from lgym.types import Message

CACHED_CONTEXTS = 100_000
"""Contexts kept by a builder. Beyond it forgets them all and starts anew; nothing but time is lost."""


class ContextBuilder:
    """Renders and tokenises each distinct observation once.

    The chat template is rendered as text and encoded without adding special tokens, since the template has written
    them already: no doubled BOS. A template that refuses a system role gets the system prompt in the user's message.
    """

    def __init__(self, tokenizer: Any, system_prompt: str, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._system_prompt = system_prompt
        self._context_length = context_length
        self._contexts: dict[tuple[str, tuple[str, ...]], Context] = {}
        self._takes_system_role = self._renders(self._messages("", system_role=True))

    def context(self, observation_text: str, candidates: Sequence[str]) -> Context:
        """The context of an observation; the same object for the same question.

        Raises:
            ValueError: if candidates repeat or tokenise alike, or the prompt is longer than the model's context.
        """
        key = (observation_text, tuple(candidates))
        known = self._contexts.get(key)
        if known is not None:
            return known
        context = Context(
            prompt_ids=self._prompt_ids(observation_text),
            candidate_ids=tuple(self._encode(candidate) for candidate in candidates),
            candidates=key[1],
            observation_text=observation_text,
        )
        self._check(context)
        if len(self._contexts) >= CACHED_CONTEXTS:
            self._contexts.clear()
        self._contexts[key] = context
        return context

    def _prompt_ids(self, observation_text: str) -> tuple[int, ...]:
        messages = self._messages(observation_text, system_role=self._takes_system_role)
        return self._encode(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def _messages(self, observation_text: str, *, system_role: bool) -> list[Message]:
        if system_role:
            return [
                {"role": "system", "content": self._system_prompt},
                {"role": "user", "content": observation_text},
            ]
        return [{"role": "user", "content": f"{self._system_prompt}\n\n{observation_text}"}]

    def _renders(self, messages: list[Message]) -> bool:
        try:
            self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except TemplateError:
            return False
        return True

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

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
                f"A prompt with its longest candidate has {longest} tokens, more than the model's {self._context_length}. "
                f"Shorten the system prompt or what the agent's format_observation says, or choose a model with a longer "
                f"context. The observation begins: {context.observation_text[:200]!r}"
            )
