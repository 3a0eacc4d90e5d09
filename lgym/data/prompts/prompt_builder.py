"""From an observation's text to the tokens of a prompt."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError

from lgym.plain_text import MARK, SpecialTokenEscaper, fit_to_tokens, replace_surrogates, truncate_middle
from lgym.rollout import Prompt
from lgym.types import ConfigError, Message

CACHED_TOKENS = 10_000_000
"""Tokens of all prompts that a builder keeps, about 40 bytes each. Beyond it the cache is cleared, in the
middle of a rollout too: prompts are equal by their content, so that nothing but time is lost."""

CHARACTERS_PER_TOKEN = 10
"""An observation is cut to so many characters for each token of the model's context before anything is
encoded."""

TODAY = datetime(2024, 7, 26)
"""The day of every prompt whose chat template writes it, that which Llama 3.2 names without a clock: by the
calendar, a run that goes on past midnight would have other prompts."""

_CODES = "".join(f"|replace('%{code}', '{TODAY.strftime('%' + code)}')" for code in "aAbBdHIjmMpSyY")
FIXED_CLOCK = f"{{% macro strftime_now(format) %}}{{{{ format{_CODES} }}}}{{% endmacro %}}\n"
"""Jinja that a chat template calls in place of transformers' `strftime_now`; by itself it renders nothing."""


class PromptBuilder:
    """Renders and tokenizes each distinct observation once.

    The chat template is rendered as text and encoded without adding special tokens, since the template has
    written them already: no doubled BOS. A template that refuses a system role gets the system prompt in the
    user's message.

    Only the template writes the tokenizer's own tokens, such as those that begin and end turns: what messages
    and candidates spell is plain text (`SpecialTokenEscaper`). An observation that is too long loses its
    middle (`lgym.plain_text.truncate_middle`).

    Args:
        tokenizer: the model's.
        system_prompt: the beginning of every prompt.
        context_length: the longest prompt, with its longest candidate, in tokens.
        max_observation_tokens: of one observation; `None` takes what the context leaves.

    Attributes:
        tokenizer: the model's.
        encode: `(text)`: the tokens of rendered text.
    """

    def __init__(
        self,
        tokenizer: Any,
        system_prompt: str,
        context_length: int,
        max_observation_tokens: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._escaper = SpecialTokenEscaper(tokenizer)
        self.encode = self._escaper.encode
        self._max_observation_tokens = max_observation_tokens
        self._system_prompt = system_prompt
        self._context_length = context_length
        self._prompts: dict[tuple[Any, tuple[str, ...]], Prompt] = {}
        self._tokens = 0  # in them
        self._template = FIXED_CLOCK + tokenizer.get_chat_template()
        self._takes_system_role = True
        try:
            self._apply_template(self._messages((), ""))
        except TemplateError:
            self._takes_system_role = False

    def prompt(self, observation_text: str, candidates: Sequence[str]) -> Prompt:
        """The prompt of an observation; the same object for the same question while that is kept.

        Raises:
            ValueError: if candidates repeat or tokenize alike, or with nothing of the observation the prompt
                is longer than the model's context.
        """
        key = (observation_text, tuple(candidates))
        if key in self._prompts:
            return self._prompts[key]
        full_text = replace_surrogates(observation_text)
        text = self.readable(full_text)
        prompt_ids = self.encode(self.render((), text))
        if not self.fits(prompt_ids, candidates):
            text = self.readable(full_text, candidates)
            prompt_ids = self.encode(self.render((), text))
        return self._add(key, prompt_ids, text, shortened=text != full_text)

    def with_prompt(
        self,
        prompt_ids: tuple[int, ...],
        observation_text: str,
        candidates: Sequence[str],
        *,
        shortened: bool,
    ) -> Prompt:
        """The prompt of rendered tokens that are more than its observation.

        Args:
            prompt_ids: the prompt.
            observation_text: its last observation, as `readable` returned it.
            candidates: to choose from.
            shortened: whether `readable` left out part of it.

        Raises:
            ValueError: as `prompt`.
        """
        key = (prompt_ids, tuple(candidates))
        if key in self._prompts:
            return self._prompts[key]
        return self._add(key, prompt_ids, observation_text, shortened=shortened)

    def readable(self, observation_text: str, candidates: Sequence[str] | None = None) -> str:
        """The part of an observation that `max_observation_tokens` and `CHARACTERS_PER_TOKEN` allow.

        Given its candidates, as much as fits a prompt of its own with the longest of them.
        """
        kept = min(len(observation_text), CHARACTERS_PER_TOKEN * self._context_length)
        if self._max_observation_tokens is not None:
            kept = fit_to_tokens(
                observation_text,
                lambda text: len(self._escaper.token_ids(text)),
                self._max_observation_tokens,
                kept,
            )
        if candidates is not None:
            room = self._context_length - self.longest(candidates)
            kept = fit_to_tokens(
                observation_text, lambda text: len(self.encode(self.render((), text))), room, kept
            )
        return truncate_middle(observation_text, kept)

    def render(self, turns: Sequence[tuple[str, str]], observation_text: str) -> str:
        """The prompt as text with marks (`SpecialTokenEscaper`): earlier observations and responses, and the
        current observation."""
        return self._render(self._messages(turns, observation_text))

    def conversation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The tokens that ask for the next message of a conversation, whose contents are plain text.

        Raises:
            TemplateError: if the chat template refuses the roles in this order.
        """
        contents = [self._escaper.escape(self.readable(replace_surrogates(m["content"]))) for m in messages]
        return self.encode(
            self._render([{**m, "content": text} for m, text in zip(messages, contents, strict=True)])
        )

    def response_text(self, text: str, ids: Collection[int] = ()) -> str:
        """A response as `render` takes it: plain text, except for markup such as `<think>` that is among its
        tokens.

        Special tokens among them are not in its text.
        """
        return self._escaper.escape(text, self._escaper.markup_ids.intersection(ids))

    def fits(self, prompt_ids: tuple[int, ...], candidates: Sequence[str]) -> bool:
        """Check that a prompt with its longest candidate is within the context length."""
        return len(prompt_ids) + self.longest(candidates) <= self._context_length

    def longest(self, candidates: Iterable[str]) -> int:
        """The tokens of the longest candidate."""
        return max((len(self._escaper.token_ids(candidate)) for candidate in candidates), default=0)

    def _add(
        self,
        key: tuple[Any, tuple[str, ...]],
        prompt_ids: tuple[int, ...],
        observation_text: str,
        *,
        shortened: bool,
    ) -> Prompt:
        prompt = Prompt(
            token_ids=prompt_ids,
            candidate_ids=tuple(map(self._escaper.token_ids, key[1])),
            candidates=key[1],
            observation_text=observation_text,
            shortened=shortened,
        )
        _require_distinct(prompt)
        if not self.fits(prompt_ids, prompt.candidates):
            raise ConfigError(
                f"A prompt with its longest candidate has {len(prompt_ids) + self.longest(key[1])} tokens, "
                f"more than the {self._context_length} that the model's context leaves beside its response, "
                "with next to nothing of the observation. Shorten the system prompt or the candidates, or "
                "choose a model with a longer prompt. The observation read: "
                f"{observation_text[:200]!r}"
            )
        size = len(prompt_ids) + sum(map(len, prompt.candidate_ids))
        if self._tokens + size > CACHED_TOKENS:
            self._prompts.clear()
            self._tokens = 0
        self._prompts[key] = prompt
        self._tokens += size
        return prompt

    def _messages(self, turns: Sequence[tuple[str, str]], observation_text: str) -> list[Message]:
        observations = [*(observation for observation, _ in turns), observation_text]
        messages: list[Message] = []
        if self._takes_system_role:
            messages.append({"role": "system", "content": self._escaper.escape(self._system_prompt)})
        else:
            observations[0] = f"{self._system_prompt}\n\n{observations[0]}"
        quoted = list(map(self._escaper.escape, observations))
        for observation, (_, reply) in zip(quoted, turns, strict=False):
            messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": reply}]
        return [*messages, {"role": "user", "content": quoted[-1]}]

    def _render(self, messages: Sequence[Message]) -> str:
        text = self._apply_template(messages)
        # The template may complete a token's name that a message begins or ends with.
        if any(self._escaper.may_complete_special_token(message["content"]) for message in messages):
            marked = self._apply_template([{**m, "content": _marked(m["content"])} for m in messages])
            if self._escaper.special_ids(marked) != self._escaper.special_ids(text):
                return marked
        return text

    def _apply_template(self, messages: Sequence[Message]) -> str:
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self._template, add_generation_prompt=True, tokenize=False
        )


def _require_distinct(prompt: Prompt) -> None:
    texts: dict[tuple[int, ...], str] = {}
    for text, ids in zip(prompt.candidates, prompt.candidate_ids, strict=True):
        if not ids:
            raise ConfigError(f"The candidate {text!r} has no tokens; every candidate needs some text.")
        if ids in texts:
            raise ConfigError(
                f"The candidates {texts[ids]!r} and {text!r} are the same tokens to this model, so it cannot "
                f"choose between them (observation: {prompt.observation_text!r}). Word them differently."
            )
        texts[ids] = text


def _marked(text: str) -> str:
    """The text with marks around it, inside the outer white space, which a template may take off."""
    core = text.strip()
    return text.replace(core, f"{MARK}{core}{MARK}") if core else MARK + text
