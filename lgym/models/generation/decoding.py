"""Writing many replies at once, token by token.

What prompts share is run once, and what a kv_cache already holds of them not again (`lgym/models/prefix_sharing/kv_cache.py`). On a CPU replies to
equal prompts are one row for as long as they say the same, and a row whose replies have ended leaves: a step costs one
token for each distinct beginning. On a GPU, which would have to wait for the answer to "which?" after each token, every
reply has a row of its own to the end, all shapes stay what they are, and the step is one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lgym.models.generation.sampling import Sampler, SamplingParams
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.kv_cache import KVCache, Step, join, prefill
from lgym.models.prefix_sharing.packing import TokenIds

STOP_CHECK_INTERVAL = 16
"""Tokens after which the fixed-shape loop looks whether every reply has ended."""

StopCheck = Callable[[Sequence[TokenIds]], list[bool]]
"""Whether replies, of which the tokens so far are given, are over; for ends that no single token marks."""


class GeneratedText(NamedTuple):
    """A generated text in tokens, whole or so far."""

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    finished: bool
    """Whether it ended by itself."""


@dataclass(frozen=True)
class GenerationOutput:
    """What `generate` wrote to S prompts."""

    responses: list[GeneratedText]  # the distinct ones to each distinct prompt, without their text
    response_index: list[int]  # S of them: which of the replies each prompt got
    prompt_states: Tensor  # [S, H] hidden states at the ends of the prompts
    kv_cache: KVCache | None  # by reply: its prompt and all of it but the last token; None where the model keeps none here


@torch.no_grad()
def generate(
    llm: ValueHeadLLM,
    prompts: Sequence[TokenIds],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    sampling_params: SamplingParams,
    generator: torch.Generator | None,
    kv_caches: Sequence[KVCache] = (),
    stop_check: StopCheck | None = None,
    row_length: int = 64,
    max_num_seqs: int = 256,
    keep_kv_cache: bool = True,
    static_shapes: bool | None = None,
) -> GenerationOutput:
    """One reply to each prompt; equal prompts get replies of their own, which may be equal.

    Args:
        llm: whose replies they are.
        prompts: token ids, at least one each.
        max_new_tokens: the longest reply, stop token included.
        stop_ids: tokens that end a reply.
        sampling_params: what is drawn from.
        generator: `None` takes the likeliest token each time.
        known: kv_caches that prompts may go on from.
        stop_check: ends of other kinds, asked after every token.
        row_length: places of a packed row while the prompts are run.
        max_num_seqs: distinct beginnings that go on together; bounds memory.
        keep_kv_cache: whether the KV cache of the replies is wanted.
        static_shapes: whether every reply keeps a row of its own; by default on CUDA, unless `over` is asked.
    """
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    owners = torch.tensor([numbers[prompt] for prompt in prompts], device=llm.device)
    kv_cache: KVCache | _NoCache
    if llm.layout == "tree":
        kv_cache, hidden = prefill(llm, list(numbers), kv_caches, free_slots=max_new_tokens, row_length=row_length)
    else:
        kv_cache = _NoCache(list(numbers), row_length)
        hidden = kv_cache.hidden(llm, range(len(numbers)))
    sampler = Sampler(sampling_params, generator)
    stops = torch.tensor(sorted(stop_ids), device=llm.device)
    ends = hidden[owners]
    if static_shapes is None:
        static_shapes = llm.device.type == "cuda" and stop_check is None
    if static_shapes and isinstance(kv_cache, KVCache):
        replies, kv_caches = [], []
        for part in owners.split(max_num_seqs):
            own = kv_cache.select(part.tolist(), max_new_tokens)
            replies += _write_fixed(llm, own, hidden[part], max_new_tokens, stops, sampler)
            kv_caches += [own] if keep_kv_cache else []
        return GenerationOutput(replies, list(range(len(replies))), ends, join(kv_caches) if keep_kv_cache else None)
    writing = _Writing(llm, max_new_tokens, stops, sampler, stop_check, max_num_seqs, keep_kv_cache, [-1] * len(prompts))
    writing.write(_Front(kv_cache, [GeneratedText((), (), False)] * len(numbers), torch.arange(len(owners)), owners), hidden)
    return GenerationOutput(writing.replies, writing.rows, ends, join(writing.kv_caches) if writing.kv_caches else None)


@dataclass(frozen=True)
class _Front:
    """Replies in the making. Those that have said the same so far are one row of R."""

    kv_cache: KVCache | _NoCache
    said: list[GeneratedText]  # R beginnings
    samples: Tensor  # [n] which replies are meant, by number
    owners: Tensor  # [n] the row of each
    parents: list[int] | None = None  # R rows of the kv_cache that they go on from by their last token; None if they have
    last: bool = True  # whether no other goes on from this kv_cache later


@dataclass
class _Writing:
    """The way from prompts to replies, branch by branch."""

    llm: ValueHeadLLM
    limit: int
    stops: Tensor
    sampler: Sampler
    over: StopCheck | None
    max_num_seqs: int
    keep: bool
    rows: list[int]
    replies: list[GeneratedText] = field(default_factory=list)
    kv_caches: list[KVCache] = field(default_factory=list)

    def write(self, front: _Front, hidden: Tensor) -> None:
        """To the end, a branch with all that comes of it before its neighbour, so that few wait."""
        waiting = self._step(front, hidden)
        while waiting:
            waiting += self._step(*self._extended(waiting.pop()))

    def _extended(self, front: _Front) -> tuple[_Front, Tensor]:
        """A front with the kv_cache that its last tokens belong to, and their hidden states [R, H]."""
        assert front.parents is not None
        kv_cache, parents = front.kv_cache, front.parents
        if not front.last or parents != list(range(kv_cache.num_rows)):
            kv_cache = kv_cache.select(parents, self.limit - len(front.said[0].token_ids))
        hidden = kv_cache.extend(self.llm, range(len(parents)), [reply.token_ids[-1:] for reply in front.said])
        return _Front(kv_cache, front.said, front.samples, front.owners), hidden

    def _step(self, front: _Front, hidden: Tensor) -> list[_Front]:
        """Draws a token for every reply, keeps the replies that end with it, and gives the fronts that go on."""
        logits = self.llm.raw_logits(hidden)
        tokens, logprobs = self.sampler(logits, front.owners)
        beginnings, back = (front.owners * logits.shape[1] + tokens).unique(return_inverse=True)
        parents, last = beginnings // logits.shape[1], beginnings % logits.shape[1]
        likely = logprobs.new_empty(len(beginnings)).index_copy(0, back, logprobs)  # of equal beginnings they are equal
        ended = torch.isin(last, self.stops)
        columns = parents.tolist(), last.tolist(), likely.tolist(), ended.tolist()
        said = [
            GeneratedText((*front.said[row].token_ids, token), (*front.said[row].logprobs, logprob), end)
            for row, token, logprob, end in zip(*columns, strict=True)
        ]
        if self.over is not None:
            ended |= torch.tensor(self.over([reply.token_ids for reply in said]), device=ended.device)
            said = [GeneratedText(r.token_ids, r.logprobs, end) for r, end in zip(said, ended.tolist(), strict=True)]
        done = ended if len(said[0].token_ids) < self.limit else torch.ones_like(ended)
        self._end(front, parents, said, done.nonzero().squeeze(1), back)
        parts = [part for part in (~done).nonzero().squeeze(1).split(self.max_num_seqs) if len(part)]
        return [self._front(front, said, part, parents, back, last=at == 0) for at, part in enumerate(parts)]

    def _front(self, front: _Front, said: list[GeneratedText], part: Tensor, parents: Tensor, back: Tensor, *, last: bool) -> _Front:
        """One that goes on from another by some of what was said; the first in the list is the last to do so."""
        members = _members(part, front.samples, back)
        return _Front(front.kv_cache, [said[i] for i in part.tolist()], *members, parents[part].tolist(), last)

    def _end(self, front: _Front, parents: Tensor, said: list[GeneratedText], done: Tensor, back: Tensor) -> None:
        """Notes replies that are over, with their kv_cache if it is wanted."""
        if not len(done):
            return
        samples, owners = _members(done, front.samples, back)
        for sample, owner in zip(samples.tolist(), owners.tolist(), strict=True):
            self.rows[sample] = len(self.replies) + owner
        self.replies += [said[i] for i in done.tolist()]
        if self.keep and isinstance(front.kv_cache, KVCache):
            self.kv_caches.append(front.kv_cache.select(parents[done].tolist(), 0))


def _members(part: Tensor, samples: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the samples whose row is in the sorted `part`, and their places in it."""
    mine = torch.isin(back, part)
    return samples[mine.to(samples.device)], torch.searchsorted(part, back[mine])


def _write_fixed(llm: ValueHeadLLM, kv_cache: KVCache, hidden: Tensor, limit: int, stops: Tensor, sampler: Sampler) -> list[GeneratedText]:
    """A reply from each row of the kv_cache, which goes on by it; all go on to the end, and what they say after their own is
    not read."""
    count, width = len(hidden), kv_cache.width + limit
    rows = torch.arange(count, device=llm.device)
    tokens, likelihoods = sampler(llm.raw_logits(hidden), rows)
    ids, logprobs = [tokens.clone()], [likelihoods]
    going = ~torch.isin(tokens, stops)

    def once() -> Tensor:
        step = Step.of(kv_cache, rows, None, width)
        return llm.run_next(tokens, step.positions + len(kv_cache.prefix_ids), step)

    run = _captured(once) if llm.device.type == "cuda" and limit > STOP_CHECK_INTERVAL // 2 else once
    for step in range(1, limit):
        if step % STOP_CHECK_INTERVAL == 0 and not bool(going.any()):
            break
        states = run()
        kv_cache.lengths += 1
        drawn, likelihoods = sampler(llm.raw_logits(states), rows)
        tokens.copy_(drawn)
        ids.append(drawn)
        logprobs.append(likelihoods)
        going &= ~torch.isin(drawn, stops)
        if run is not once:
            llm.count(count)
    said = torch.stack(ids, dim=1)
    stopped = torch.isin(said, stops)
    ended = stopped.any(1)
    lengths = torch.where(ended, stopped.int().argmax(1) + 1, said.shape[1])
    kv_cache.lengths = torch.tensor([len(row) for row in kv_cache.rows], device=llm.device) + lengths - 1
    columns = said.tolist(), torch.stack(logprobs, dim=1).float().tolist(), lengths.tolist(), ended.tolist()
    replies = [GeneratedText(tuple(i[:n]), tuple(p[:n]), end) for i, p, n, end in zip(*columns, strict=True)]
    kv_cache.rows = [row + reply.token_ids[:-1] for row, reply in zip(kv_cache.rows, replies, strict=True)]
    return replies


def _captured(once: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same as a CUDA graph; running it twice over writes the same keys and values to the same places."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        states = once()

    def replay() -> Tensor:
        graph.replay()
        return states

    return replay


@dataclass
class _NoCache:
    """For models that keep no kv_cache here: every reply is run again from its beginning."""

    sequences: list[TokenIds]
    row_length: int

    @property
    def num_rows(self) -> int:
        return len(self.sequences)

    def select(self, rows: Sequence[int], room: int) -> _NoCache:
        """As `KVCache.select`."""
        return _NoCache([self.sequences[row] for row in rows], self.row_length)

    def extend(self, llm: ValueHeadLLM, rows: Sequence[int], tails: Sequence[TokenIds]) -> Tensor:
        """As `KVCache.extend`, of one token each."""
        for row, tail in zip(rows, tails, strict=True):
            self.sequences[row] += tail
        return self.hidden(llm, rows)

    def hidden(self, llm: ValueHeadLLM, rows: Sequence[int]) -> Tensor:
        sequences = [self.sequences[row] for row in rows]
        states, index = llm.hidden_states(sequences, [len(s) for s in sequences], row_length=self.row_length)
        return states[[own[0] for own in index]]
