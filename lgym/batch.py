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
from dataclasses import dataclass, field, fields, replace
from heapq import heappop, heappush
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Context:
    """One question to the policy: a prompt and the answers it may give. Two are equal that ask the same, whoever made
    them and when."""

    prompt_ids: tuple[int, ...]
    """The rendered prompt, up to the token after which the agent acts."""

    candidate_ids: tuple[tuple[int, ...], ...]
    """The tokens of each candidate, C tuples of any lengths; none where the model speaks freely."""

    candidates: tuple[str, ...]
    """The candidates as the agent wrote them."""

    observation_text: str = field(compare=False)
    """The observation as the agent wrote it, or what the model read of it."""
    shortened: bool = field(default=False, compare=False)  # whether that is not the whole


@dataclass(frozen=True)
class Reply:
    """What a policy said, with the log-probability of every token at that time."""

    ids: tuple[int, ...]
    """The tokens, in the order in which they came."""

    logprobs: tuple[float, ...]
    """Of each token, under the distribution that it was drawn from; 0 where it was not drawn."""

    ended: bool
    """Whether it ended by itself; otherwise it was cut at the limit."""

    text: str = ""
    """What it says, without a stop token."""

    drawn: tuple[bool, ...] = ()
    """Which tokens the policy chose, a candidate of several tokens at its first; empty where it chose all."""

    choice: int = -1
    """Which of the context's candidates it came to; -1 for free text."""

    fed_ids: tuple[int, ...] = ()
    """Those of `ids` that later tokens stand behind; empty where all are."""

    @property
    def mask(self) -> tuple[bool, ...]:
        return self.drawn or (True,) * len(self.ids)


@dataclass(frozen=True)
class Likelihoods:
    """What a policy says of a `ReplyBatch`, differentiable."""

    logprobs: Tensor  # [B, T], 0 where the batch's mask is false
    entropy: Tensor  # [B, T] nats, likewise
    values: Tensor  # [B, T] of the state before each token, so of column 0 before the turn; anything where the mask is false

    def of(self, which: Tensor) -> Likelihoods:
        """Of [n] turns, each of which said one of these B replies."""
        return Likelihoods(self.logprobs[which], self.entropy[which], self.values[which])


@dataclass(frozen=True)
class Rollout:
    """What happened: E environment streams of N turns each, over U distinct contexts.

    Where a stream had nothing left to play, or has lost an episode, it holds idle turns, where `mask` is false.
    """

    contexts: tuple[Context, ...]
    context_ids: Tensor  # [E, N] int64, which context each turn answered
    choices: Tensor  # [E, N] int64, which candidate was chosen, or which of `replies` was given
    rewards: Tensor  # [E, N]
    terminated: Tensor  # [E, N] bool
    truncated: Tensor  # [E, N] bool, also where the rollout itself cut an episode
    cut: Tensor  # [E, N] bool, where it did: the last of the episode's turns here
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
    episode_penalties: Tensor  # [episodes that ended in this rollout], what of their returns is the agent's own penalty
    play_seconds: float
    episodes_dropped: int = 0  # with the workers that played them; not a turn of theirs is here

    @property
    def values(self) -> Tensor:
        """[E, N] the state values at play."""
        return self.context_values[self.context_ids]


class _Minibatched:
    """Turns that are learned from in minibatches."""

    rows: Tensor
    scale: float

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> int:
        """What its means count for, in turns: none where its scale is 0 and it only fills up a pass."""
        return len(self) if self.scale else 0

    def to(self, device: torch.device | str) -> Any:
        """The same with its tensors on a device."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor | ReplyBatch)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})  # type: ignore[type-var]


@dataclass(frozen=True)
class TurnBatch(_Minibatched):
    """Turns to learn from, with what was known when they were played. Sorted by context."""

    contexts: tuple[Context, ...]
    bundles: tuple[tuple[int, ...], ...]  # the contexts that a minibatch takes together
    rows: Tensor  # [B] int64, the context of each turn
    choices: Tensor  # [B] int64
    old_logprobs: Tensor  # [U, C] the distributions that were sampled from
    old_values: Tensor  # [B]
    advantages: Tensor  # [B]
    returns: Tensor  # [B]
    ref_logprobs: Tensor | None  # [U, C] the frozen reference's distributions, where a loss wants them
    scale: float
    """What the sum of a minibatch's losses is multiplied by: of a rollout 1 over its turns (the mean number of them over
    all processes), of a minibatch that times the minibatches of a pass. So minibatches of one pass average to the mean
    over the rollout, however unequal they are."""

    imitated: ReplyBatch | None = None
    """Turns to imitate beside these."""

    def select(self, chosen: Sequence[int], scale: float) -> TurnBatch:
        """The turns of the `chosen` contexts, and only those contexts."""
        index = torch.as_tensor(chosen, dtype=torch.int64)
        turns, counts = _turns_of(self.rows, index)
        contexts = tuple(self.contexts[i] for i in index.tolist())
        width = max(len(context.candidates) for context in contexts)
        return TurnBatch(
            contexts=contexts,
            bundles=(tuple(range(len(index))),),
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
        """One pass: the bundles of contexts, `size` contexts at a time, each with all its turns: so that every distinct
        prompt is evaluated once a pass, however often it was met."""
        parts = self.parts(size, order)
        for part in parts:
            yield self.select(part, scale=self.scale * len(parts))

    def parts(self, size: int, order: Sequence[int]) -> list[list[int]]:
        """The contexts of each of its minibatches."""
        return _filled(self.bundles, self.rows, size, order)


@dataclass(frozen=True)
class ReplyBatch(_Minibatched):
    """Turns to learn from token by token; a choice between candidates is one token."""

    contexts: tuple[Context, ...]
    bundles: tuple[tuple[int, ...], ...]  # the contexts that a minibatch takes together
    by_reply: bool  # whether minibatches are counted in distinct replies, or in contexts
    rows: Tensor  # [B] int64, the context of each turn
    replies: tuple[tuple[int, ...], ...]  # B replies' tokens
    choices: Tensor  # [B] int64, the candidate that each came to, -1 for free text
    mask: Tensor  # [B, T] bool, the tokens that the policy chose
    old_logprobs: Tensor  # [B, T], 0 where the mask is false, like all that follow
    advantages: Tensor  # [B, T]
    returns: Tensor | None  # [B, T] what values should have foretold, or [B, 1] before each turn, where a loss wants them
    ref_logprobs: Tensor | None  # [B, T] the frozen reference's, where a loss wants them
    scale: float
    """What the sum of a minibatch's losses is multiplied by; minibatches of one pass then average to the rollout's loss."""

    imitated: ReplyBatch | None = None
    """Turns to imitate beside these."""

    def select(self, turns: Tensor, scale: float) -> ReplyBatch:
        """These turns, and only their contexts."""
        mask = self.mask[turns]
        width = int(mask.any(0).nonzero().max()) + 1
        contexts, rows = self.rows[turns].unique(return_inverse=True)

        def of(columns: Tensor | None) -> Any:
            return None if columns is None else columns[turns, :width]

        return ReplyBatch(
            contexts=tuple(self.contexts[i] for i in contexts.tolist()),
            bundles=(tuple(range(len(contexts))),),
            by_reply=self.by_reply,
            rows=rows,
            replies=tuple(self.replies[i] for i in turns.tolist()),
            choices=self.choices[turns],
            mask=mask[:, :width],
            old_logprobs=of(self.old_logprobs),
            advantages=of(self.advantages),
            returns=of(self.returns),
            ref_logprobs=of(self.ref_logprobs),
            scale=scale,
        )

    def minibatches(self, size: int, order: Sequence[int]) -> Iterator[ReplyBatch]:
        """One pass over the bundles in the given order: `size` contexts at a time, each with all its turns, or where
        `by_reply`, `size` distinct replies with all turns that gave them."""
        parts = self.parts(size, order)
        for part in parts:
            yield self.select(part, scale=self.scale * len(parts))

    def parts(self, size: int, order: Sequence[int]) -> list[Tensor]:
        """The turns of each of its minibatches."""
        if not self.by_reply:
            return [_turns_of(self.rows, torch.tensor(part))[0] for part in _filled(self.bundles, self.rows, size, order)]
        said: dict[int, dict[int, list[int]]] = {}
        for turn, (context, reply) in enumerate(zip(self.rows.tolist(), self._replies(), strict=True)):
            said.setdefault(context, {}).setdefault(reply, []).append(turn)
        turns = [own for b in order for context in self.bundles[b] for own in said[context].values()]
        return [torch.tensor([turn for own in turns[at : at + size] for turn in own]) for at in range(0, len(turns), size)]

    def distinct(self) -> tuple[ReplyBatch, Tensor]:
        """Every reply to every context once, and [B] int64 which of them each turn gave."""
        which = self._replies()
        first: dict[int, int] = {}
        for turn, reply in enumerate(which):
            first.setdefault(reply, turn)
        return self.select(torch.tensor(list(first.values())), self.scale), torch.tensor(which)

    def _replies(self) -> list[int]:
        """B numbers of replies, equal where context and reply are, in the order in which they are met first."""
        numbers: dict[tuple[int, tuple[int, ...], int], int] = {}
        said = zip(self.rows.tolist(), self.replies, self.choices.tolist(), strict=True)
        return [numbers.setdefault(own, len(numbers)) for own in said]


def _filled(bundles: Sequence[Sequence[int]], rows: Tensor, size: int, order: Sequence[int]) -> list[list[int]]:
    """Bundles in the given order as minibatches of `size` contexts, or as many more as the last bundle has. Each goes where
    the fewest turns are yet: under gradient clipping, and with Adam, minibatches of few would count too much."""
    turns = torch.bincount(rows, minlength=1).tolist()
    parts: list[list[int]] = [[] for _ in range(-(-sum(map(len, bundles)) // size))]
    open_parts = [(0, number) for number in range(len(parts))]
    for b in order:
        held, number = heappop(open_parts)
        parts[number] += bundles[b]
        if len(parts[number]) < size:
            heappush(open_parts, (held + sum(turns[context] for context in bundles[b]), number))
    return [part for part in parts if part]


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
