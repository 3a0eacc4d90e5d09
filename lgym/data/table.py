"""The distinct contexts of one rollout, and what the policy says of each: asked once, since it does not change."""

from __future__ import annotations

import numpy as np
import torch

from lgym.batch import Context
from lgym.types import Policy


class ContextTable:
    """Numbers contexts in the order they are met, and holds the policy's distribution and value for each."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
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

    def evaluate(self) -> None:
        """Asks the policy about the contexts it has not been asked about."""
        fresh = self.contexts[len(self.values) :]
        if not fresh:
            return
        logprobs, values = self._policy.evaluate(fresh)
        new = logprobs.float().numpy()
        width = max(self.logprobs.shape[1], new.shape[1])
        self.logprobs = np.concatenate([_widen(self.logprobs, width), _widen(new, width)])
        self.values = np.concatenate([self.values, values.float().numpy()])

    def choose(self, numbers: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """One candidate for each of the numbered contexts: sampled, or without `rng` the likeliest."""
        logprobs = self.logprobs[numbers]
        if rng is None:
            return logprobs.argmax(axis=1)
        cumulative = np.exp(logprobs.astype(np.float64)).cumsum(axis=1)
        thresholds = rng.random(len(numbers))[:, None] * cumulative[:, -1:]
        return (cumulative <= thresholds).sum(axis=1)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """`logprobs` [U, C] and `values` [U]."""
        return torch.from_numpy(self.logprobs), torch.from_numpy(self.values)


def _widen(logprobs: np.ndarray, width: int) -> np.ndarray:
    missing = width - logprobs.shape[1]
    return np.pad(logprobs, ((0, 0), (0, missing)), constant_values=-np.inf) if missing else logprobs
