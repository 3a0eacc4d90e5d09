"""The distinct contexts of one rollout, and what the policy says of each: asked once, since it does not change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lgym.batch import Context, Reply
from lgym.types import Policy, Said, SpeakingPolicy, Turn


class ContextTable:
    """Numbers contexts in the order they are met, and holds the policy's distribution and value for each."""

    def __init__(self, policy: Policy, *, going_on: bool = True) -> None:
        """
        Args:
            policy: whom to ask.
            going_on: whether later prompts go on from those that were acted on.
        """
        self._policy, self._going_on = policy, going_on
        self._numbers: dict[Context, int] = {}
        self.contexts: list[Context] = []
        self.logprobs = np.zeros((0, 0), dtype=np.float32)  # [U, C]
        self.values = np.zeros(0, dtype=np.float32)  # [U]

    def number(self, context: Context) -> int:
        """The context's number; a new one if it has not been met yet."""
        number = self._numbers.get(context)
        if number is None:
            number = self._numbers[context] = len(self.contexts)
            self.contexts.append(context)
        return number

    def evaluate(self, going_on: Sequence[Context] = ()) -> None:
        """Asks the policy about the contexts it has not been asked about; later prompts go on from those in `going_on`."""
        fresh = self.contexts[len(self.values) :]
        if not fresh:
            return
        logprobs, values = self._policy.evaluate(fresh, going_on=going_on)
        new = logprobs.float().numpy()
        width = max(self.logprobs.shape[1], new.shape[1])
        self.logprobs = np.concatenate([_widen(self.logprobs, width), _widen(new, width)])
        self.values = np.concatenate([self.values, values.float().numpy()])

    def complete(self) -> None:
        """Asks about the contexts that nobody has acted on, whose values bootstrap; without a critic they are NaN."""
        if self._policy.has_critic:
            self.evaluate()
        missing = len(self.contexts) - len(self.values)
        self.logprobs = np.pad(self.logprobs, ((0, missing), (0, 0)), constant_values=-np.inf)
        self.values = np.pad(self.values, (0, missing), constant_values=np.nan)

    def act(self, numbers: np.ndarray, rng: np.random.Generator | None) -> tuple[np.ndarray, list[Said]]:
        """One candidate for each of the numbered contexts, by number and words: sampled, or without `rng` the likeliest."""
        self.evaluate([self.contexts[n] for n in numbers.tolist()] if self._going_on else ())
        choices = self._choose(numbers, rng)
        return choices, [self._said(n, choice) for n, choice in zip(numbers.tolist(), choices.tolist(), strict=True)]

    def turn(self, number: int, choice: int, reward: float) -> Turn:
        """A turn as a person reads it."""
        context = self.contexts[number]
        probabilities = np.exp(self.logprobs[number, : len(context.candidates)])
        return Turn(
            observation_text=context.observation_text,
            response_text=context.candidates[choice],
            reward=reward,
            value=known_value(self.values[number]),
            probabilities=dict(zip(context.candidates, map(float, probabilities), strict=True)),
        )

    def _said(self, number: int, choice: int) -> Said:
        context = self.contexts[number]
        text = context.candidates[choice]
        return Said(text, text, context.candidate_ids[choice], False)

    def _choose(self, numbers: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        logprobs = self.logprobs[numbers]
        if rng is None:
            return logprobs.argmax(axis=1)
        cumulative = np.exp(logprobs.astype(np.float64)).cumsum(axis=1)
        thresholds = rng.random(len(numbers))[:, None] * cumulative[:, -1:]
        return (cumulative <= thresholds).sum(axis=1)

    def record(self) -> dict[str, Any]:
        """What a `Rollout` keeps of it."""
        return {
            "contexts": tuple(self.contexts),
            "candidate_logprobs": torch.from_numpy(self.logprobs),
            "context_values": torch.from_numpy(self.values),
            "replies": (),
        }


class ReplyTable:
    """The distinct contexts of one rollout, and every reply that a policy that speaks has given; each turn gets its own."""

    def __init__(self, policy: SpeakingPolicy, *, going_on: bool = True) -> None:
        """
        Args:
            policy: whom to ask.
            going_on: whether later prompts go on from what was said to earlier ones.
        """
        self._policy, self._going_on = policy, going_on
        self._numbers: dict[Context, int] = {}
        self.contexts: list[Context] = []
        self.replies: list[Reply] = []
        self.values = np.zeros(0, dtype=np.float32)  # [U], NaN where not asked yet

    def number(self, context: Context) -> int:
        """The context's number; a new one if it has not been met yet."""
        return self._numbers.setdefault(context, len(self._numbers))

    def complete(self) -> None:
        """Asks for the values of the contexts that nobody has answered, which bootstrap; without a critic they are NaN."""
        self._extend()
        missing = np.isnan(self.values).nonzero()[0]
        if len(missing) and self._policy.has_critic:
            self.values[missing] = self._policy.values([self.contexts[n] for n in missing]).float().numpy()

    def act(self, numbers: np.ndarray, rng: np.random.Generator | None) -> tuple[np.ndarray, list[Said]]:
        """A reply to each of the numbered contexts, by number and words: sampled, or without `rng` the likeliest tokens."""
        self._extend()
        seed = None if rng is None else int(rng.integers(2**62))
        asked = [self.contexts[n] for n in numbers.tolist()]
        replies, values = self._policy.reply(asked, seed, going_on=self._going_on)
        self.values[numbers] = values.float().numpy()
        choices = np.arange(len(self.replies), len(self.replies) + len(replies))
        self.replies += replies
        return choices, [self._said(n, reply) for n, reply in zip(numbers.tolist(), replies, strict=True)]

    def turn(self, number: int, choice: int, reward: float) -> Turn:
        """A turn as a person reads it."""
        text = self.replies[choice].text
        return Turn(self.contexts[number].observation_text, text, reward, known_value(self.values[number]))

    def record(self) -> dict[str, Any]:
        """What a `Rollout` keeps of it."""
        return {
            "contexts": tuple(self.contexts),
            "candidate_logprobs": None,
            "context_values": torch.from_numpy(self.values),
            "replies": tuple(self.replies),
        }

    def _said(self, number: int, reply: Reply) -> Said:
        answer = reply.text if reply.choice < 0 else self.contexts[number].candidates[reply.choice]
        return Said(answer, reply.text, reply.fed_ids or reply.ids, reply.ended)

    def _extend(self) -> None:
        self.contexts = list(self._numbers)
        self.values = np.pad(self.values, (0, len(self.contexts) - len(self.values)), constant_values=np.nan)


def known_value(value: float) -> float | None:
    """A value as people are shown it; NaN where the policy has none."""
    return None if np.isnan(value) else float(value)


def _widen(logprobs: np.ndarray, width: int) -> np.ndarray:
    missing = width - logprobs.shape[1]
    return np.pad(logprobs, ((0, 0), (0, missing)), constant_values=-np.inf) if missing else logprobs
