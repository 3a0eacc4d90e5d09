"""What travels between playing and learning, and the legend of its shapes.

    B  sequences, or the turns of a flat batch      G  group (episodes from one reset seed)
    T  tokens                                       E  environments played together
    N  turns (time last)                            V  vocabulary
    C  candidates, padded to the longest list       H  hidden size
    U  distinct contexts of a rollout

Every tensor here lives on the CPU in fp32, int64 or bool until `to(device)` moves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Context:
    """One question to the policy: a prompt and the answers it may give. Compared by identity, so that a dict of
    contexts costs nothing; whoever makes them sees to it that equal ones are the same object."""

    prompt_ids: tuple[int, ...]
    """The rendered prompt, up to the token after which the agent acts."""

    candidate_ids: tuple[tuple[int, ...], ...]
    """The tokens of each candidate, C tuples of any lengths."""

    candidates: tuple[str, ...]
    """The candidates as the agent wrote them."""

    observation_text: str
    """The observation as the agent wrote it."""


@dataclass(frozen=True)
class Rollout:
    """What happened: E environment streams of N turns each, over U distinct contexts.

    A stream that had nothing left to play holds idle turns at its end, where `mask` is false.
    """

    contexts: tuple[Context, ...]
    context_ids: Tensor  # [E, N] int64, which context each turn answered
    choices: Tensor  # [E, N] int64, which candidate was chosen
    rewards: Tensor  # [E, N]
    terminated: Tensor  # [E, N] bool
    truncated: Tensor  # [E, N] bool, also where the rollout itself cut an episode
    mask: Tensor  # [E, N] bool
    candidate_logprobs: Tensor  # [U, C], -inf where a context has fewer candidates
    context_values: Tensor  # [U]
    next_values: Tensor  # [E, N], value of the observation each turn led to; 0 where terminated
    episode_returns: Tensor  # [episodes that ended in this rollout]
    episode_lengths: Tensor  # [episodes that ended in this rollout], turns
    play_seconds: float

    @property
    def values(self) -> Tensor:
        """[E, N] the state values at play."""
        return self.context_values[self.context_ids]


@dataclass(frozen=True)
class TurnBatch:
    """Turns to learn from, with what was known when they were played. Sorted by context."""

    contexts: tuple[Context, ...]
    rows: Tensor  # [B] int64, the context of each turn
    choices: Tensor  # [B] int64
    old_logprobs: Tensor  # [U, C] the distributions that were sampled from
    old_values: Tensor  # [B]
    advantages: Tensor  # [B]
    returns: Tensor  # [B]
    ref_logprobs: Tensor | None  # [U, C] the frozen reference's distributions, where a loss wants them
    scale: float
    """What one turn's loss is multiplied by: the number of minibatches of a pass over the number of turns of the
    rollout. Minibatches of one pass then average to the mean over the rollout, however unequal they are."""

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device | str) -> TurnBatch:
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})

    def select(self, chosen: Sequence[int], scale: float) -> TurnBatch:
        """The turns of the `chosen` contexts, and only those contexts."""
        index = torch.as_tensor(chosen, dtype=torch.int64)
        starts = torch.searchsorted(self.rows, index)
        ends = torch.searchsorted(self.rows, index, right=True)
        turns = torch.cat([torch.arange(s, e) for s, e in zip(starts.tolist(), ends.tolist(), strict=True)])
        contexts = tuple(self.contexts[i] for i in index.tolist())
        width = max(len(context.candidates) for context in contexts)
        return TurnBatch(
            contexts=contexts,
            rows=torch.repeat_interleave(torch.arange(len(index)), ends - starts),
            choices=self.choices[turns],
            old_logprobs=self.old_logprobs[index, :width],
            old_values=self.old_values[turns],
            advantages=self.advantages[turns],
            returns=self.returns[turns],
            ref_logprobs=None if self.ref_logprobs is None else self.ref_logprobs[index, :width],
            scale=scale,
        )

    def minibatches(self, size: int, order: Sequence[int]) -> Iterator[TurnBatch]:
        """One pass: the contexts in the given order, `size` at a time, each with all its turns.

        Every distinct prompt is so evaluated once a pass, however often it was met.
        """
        count = -(-len(order) // size)
        for start in range(0, len(order), size):
            yield self.select(order[start : start + size], scale=count / len(self))


@dataclass(frozen=True)
class EpisodeStatistics:
    """The outcome of evaluation episodes."""

    returns: Tensor  # [B] undiscounted
    lengths: Tensor  # [B] turns

    def to(self, device: torch.device | str) -> EpisodeStatistics:
        return EpisodeStatistics(self.returns.to(device), self.lengths.to(device))


class InFlight:
    """Carries a batch past Lightning's precision plugins, which round every float tensor that they find in it.

    Under `bf16-true`, recorded log-probabilities would lose all but three digits. The plugins do not look into this
    object; moving it to a device unpacks it.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def to(self, device: torch.device | str, **_: Any) -> Any:
        return self.batch.to(device) if hasattr(self.batch, "to") else self.batch
