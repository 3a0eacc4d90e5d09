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
    """The tokens of each candidate, C tuples of any lengths; none where the model speaks freely."""

    candidates: tuple[str, ...]
    """The candidates as the agent wrote them."""

    observation_text: str
    """The observation as the agent wrote it."""


@dataclass(frozen=True)
class Reply:
    """What a policy that speaks freely said, with the log-probability of every token at that time."""

    ids: tuple[int, ...]
    """The tokens; the last is a stop token if the reply ended by itself."""

    logprobs: tuple[float, ...]
    """Of each token, under the distribution that it was drawn from."""

    ended: bool
    """Whether a stop token ended it; otherwise it was cut at the limit."""

    text: str = ""
    """What it says, without the stop token."""


@dataclass(frozen=True)
class Rollout:
    """What happened: E environment streams of N turns each, over U distinct contexts.

    A stream that had nothing left to play holds idle turns at its end, where `mask` is false.
    """

    contexts: tuple[Context, ...]
    context_ids: Tensor  # [E, N] int64, which context each turn answered
    choices: Tensor  # [E, N] int64, which candidate was chosen, or which of `replies` was given
    rewards: Tensor  # [E, N]
    terminated: Tensor  # [E, N] bool
    truncated: Tensor  # [E, N] bool, also where the rollout itself cut an episode
    mask: Tensor  # [E, N] bool
    parsed: Tensor  # [E, N] bool, whether an action could be read from the answer
    episode_ids: Tensor  # [E, N] int64, the number of the turn's episode, counted over the run
    reset_seeds: Tensor  # [E, N] int64, what that episode was reset with
    candidate_logprobs: Tensor | None  # [U, C], -inf where a context has fewer candidates; None of a policy that speaks
    replies: tuple[Reply, ...]  # of a policy that speaks
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
        return _moved(self, device)

    def select(self, chosen: Sequence[int], scale: float) -> TurnBatch:
        """The turns of the `chosen` contexts, and only those contexts."""
        index = torch.as_tensor(chosen, dtype=torch.int64)
        turns, counts = _turns_of(self.rows, index)
        contexts = tuple(self.contexts[i] for i in index.tolist())
        width = max(len(context.candidates) for context in contexts)
        return TurnBatch(
            contexts=contexts,
            rows=torch.repeat_interleave(torch.arange(len(index)), counts),
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
class ReplyBatch:
    """Turns of a policy that speaks, to learn from token by token. Sorted by context."""

    contexts: tuple[Context, ...]
    rows: Tensor  # [B] int64, the context of each turn
    replies: tuple[tuple[int, ...], ...]  # B replies' tokens
    old_logprobs: Tensor  # [B, T], 0 behind a reply's end
    advantages: Tensor  # [B]
    ref_logprobs: Tensor | None  # [B, T] the frozen reference's, where a loss wants them
    scale: float
    """What the sum of a minibatch's losses is multiplied by; minibatches of one pass then average to the rollout's loss."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def mask(self) -> Tensor:
        """[B, T] bool: where there is a token."""
        lengths = torch.tensor([len(reply) for reply in self.replies], device=self.rows.device)
        return torch.arange(self.old_logprobs.shape[1], device=self.rows.device) < lengths[:, None]

    def to(self, device: torch.device | str) -> ReplyBatch:
        return _moved(self, device)

    def select(self, chosen: Sequence[int], scale: float) -> ReplyBatch:
        """The turns of the `chosen` contexts, and only those contexts."""
        index = torch.as_tensor(chosen, dtype=torch.int64)
        turns, counts = _turns_of(self.rows, index)
        replies = tuple(self.replies[i] for i in turns.tolist())
        width = max(map(len, replies))
        return ReplyBatch(
            contexts=tuple(self.contexts[i] for i in index.tolist()),
            rows=torch.repeat_interleave(torch.arange(len(index)), counts),
            replies=replies,
            old_logprobs=self.old_logprobs[turns, :width],
            advantages=self.advantages[turns],
            ref_logprobs=None if self.ref_logprobs is None else self.ref_logprobs[turns, :width],
            scale=scale,
        )

    def minibatches(self, size: int, order: Sequence[int]) -> Iterator[ReplyBatch]:
        """One pass, as `TurnBatch.minibatches`."""
        count = -(-len(order) // size)
        for start in range(0, len(order), size):
            yield self.select(order[start : start + size], scale=self.scale * count)


def _moved(batch: Any, device: torch.device | str) -> Any:
    """A batch with its tensors on a device."""
    tensors = {f.name: getattr(batch, f.name) for f in fields(batch) if isinstance(getattr(batch, f.name), Tensor)}
    return replace(batch, **{name: tensor.to(device) for name, tensor in tensors.items()})


def _turns_of(rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Which turns belong to the chosen contexts, in their order, and how many to each; `rows` is sorted."""
    starts = torch.searchsorted(rows, chosen)
    ends = torch.searchsorted(rows, chosen, right=True)
    turns = [torch.arange(s, e) for s, e in zip(starts.tolist(), ends.tolist(), strict=True)]
    return torch.cat(turns), ends - starts


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
