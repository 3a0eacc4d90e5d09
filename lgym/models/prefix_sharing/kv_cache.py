"""Keys and values of sequences that go on: the replies that are being written, and the conversations behind them.

A prefix that all have in common is kept once, what is a sequence's own in a row of its own:

    prefix   keys [kv_heads, P, d]
    own      keys [S, kv_heads, T, d]

A prompt that begins with what a row already holds, as each turn of a growing conversation does, costs only its rest. Valid
while the weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lgym.models.limits import tokens_per_forward
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import PackedRows, TokenIds, common_prefix_length, split_micro_batches
from lgym.models.prefix_sharing.tree_attention import Tree

States = dict[nn.Module, tuple[Tensor, Tensor]]
"""Keys and values by attention layer."""


@dataclass
class KVCache:
    """Keys and values of S sequences."""

    prefix_ids: TokenIds
    rows: list[TokenIds]  # the tokens behind the prefix
    lengths: Tensor  # [S] int64, their numbers
    prefix: States = field(default_factory=dict)
    own: States = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """S, the number of rows."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return max(map(len, self.rows), default=0)

    def select(self, rows: Sequence[int], room: int) -> KVCache:
        """A copy of these rows, which may repeat, with `room` more places behind the longest."""
        index = torch.tensor(rows, device=self.lengths.device)
        chosen = [self.rows[row] for row in rows]
        width = max(map(len, chosen))
        own: States = {m: (_chosen(k, index, width, room), _chosen(v, index, width, room)) for m, (k, v) in self.own.items()}
        return KVCache(self.prefix_ids, chosen, self.lengths[index], self.prefix, own)

    def shortened(self, length: int) -> KVCache:
        """The same with a prefix of at most `length` tokens; the rest of it is in every row."""
        if length >= len(self.prefix_ids):
            return self
        tail = self.prefix_ids[length:]
        count = len(self.rows)

        def moved(prefix: Tensor, own: Tensor) -> Tensor:
            return torch.cat([prefix[None, :, length:].expand(count, -1, -1, -1), own], dim=2)

        own: States = {
            m: (moved(self.prefix[m][0], keys), moved(self.prefix[m][1], values)) for m, (keys, values) in self.own.items()
        }
        prefix: States = {m: (keys[:, :length], values[:, :length]) for m, (keys, values) in self.prefix.items()}
        return KVCache(self.prefix_ids[:length], [tail + row for row in self.rows], self.lengths + len(tail), prefix, own)

    def extend(self, llm: ValueHeadLLM, rows: Sequence[int], tails: Sequence[TokenIds]) -> Tensor:
        """Adds one or more tokens to each of the rows, which have room for them; [tokens, H] hidden states, row by row."""
        device = self.lengths.device
        tokens = torch.tensor([token for tail in tails for token in tail], device=device)
        one_each = len(tokens) == len(tails)
        counts = None if one_each else torch.tensor([len(tail) for tail in tails], device=device)
        index = torch.tensor(rows, device=device)
        for row, tail in zip(rows, tails, strict=True):
            self.rows[row] = self.rows[row] + tail
        return self.extend_by(llm, index, tokens, counts, self.width)

    def extend_by(self, llm: ValueHeadLLM, rows: Tensor, tokens: Tensor, counts: Tensor | None, width: int) -> Tensor:
        """As `extend`, from tensors, and without a note of the tokens in `rows`: one token each, or `counts`."""
        step = Step.of(self, rows, counts, width)
        hidden = llm.run_next(tokens, step.positions + len(self.prefix_ids), step)
        self.lengths[rows] += 1 if counts is None else counts
        return hidden


def _chosen(states: Tensor, index: Tensor, width: int, room: int) -> Tensor:
    _, heads, _, size = states.shape
    chosen = states.new_zeros((len(index), heads, width + room, size))
    chosen[:, :, :width] = states[:, :, :width].index_select(0, index)
    return chosen


def join(kv_caches: Sequence[KVCache]) -> KVCache:
    """The rows of several kv_caches in one, behind the prefix that all have in common."""
    if len(kv_caches) == 1:
        return kv_caches[0]
    common = common_prefix_length([kv_cache.prefix_ids for kv_cache in kv_caches])
    kv_caches = [kv_cache.shortened(common) for kv_cache in kv_caches]
    own: States = {}
    for module in kv_caches[0].own:
        keys, values = zip(*(kv_cache.own[module] for kv_cache in kv_caches), strict=True)
        own[module] = _stacked(keys), _stacked(values)
    rows = [row for kv_cache in kv_caches for row in kv_cache.rows]
    return KVCache(kv_caches[0].prefix_ids, rows, torch.cat([kv_cache.lengths for kv_cache in kv_caches]), kv_caches[0].prefix, own)


def _stacked(parts: Iterable[Tensor]) -> Tensor:
    parts = list(parts)
    places = max(part.shape[2] for part in parts)
    return torch.cat([nn.functional.pad(part, (0, 0, 0, places - part.shape[2])) for part in parts])


@dataclass
class Step:
    """A layout where tokens go on from the rows of a kv_cache, one or more in each."""

    kv_cache: KVCache
    rows: Tensor  # [R] int64, the rows that go on
    width: int  # places of the longest row, these tokens included
    owners: Tensor  # [n] int64, the row of each token
    positions: Tensor  # [n] int64, the place of each token in its row
    slots: Tensor | None  # [n] int64, the place of each token among the R * M queries; None where each row has one
    unseen: Tensor  # [R, 1, M, width] bool, the places that lie behind each query

    @staticmethod
    def of(kv_cache: KVCache, rows: Tensor, counts: Tensor | None, width: int) -> Step:
        """One more token in each of the rows, or `counts`."""
        lengths = kv_cache.lengths[rows]
        places = torch.arange(width, device=rows.device)
        if counts is None:
            return Step(kv_cache, rows, width, rows, lengths, None, (places > lengths[:, None])[:, None, None])
        most = int(counts.max())
        steps = torch.arange(most, device=rows.device)
        real = steps < counts[:, None]  # [R, M]
        positions = lengths[:, None] + steps
        slots = real.flatten().nonzero().squeeze(1)
        owners = rows.repeat_interleave(counts)
        return Step(kv_cache, rows, width, owners, positions[real], slots, (places > positions[..., None])[:, None])

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        keys, values = self.kv_cache.own[module]
        keys[self.owners, :, self.positions] = k
        values[self.owners, :, self.positions] = v
        every = len(self.rows) == len(keys)
        keys, values = ((s if every else s[self.rows])[:, :, : self.width] for s in (keys, values))
        q = self._queries(q, k.shape[1])  # [R, kv_heads, group, M, d]
        scores = (q.flatten(2, 3) @ keys.transpose(-1, -2) * scale).unflatten(2, q.shape[2:4])
        scores = _cap(scores, softcap).masked_fill(self.unseen[:, :, None], -torch.inf)  # [R, kv_heads, group, M, width]
        if not self.kv_cache.prefix_ids:
            return self._collected((scores.softmax(-1).flatten(2, 3) @ values).view_as(q))
        prefix_keys, prefix_values = self.kv_cache.prefix[module]  # [kv_heads, P, d]
        before = _cap(torch.einsum("rhgmd,hpd->rhgmp", q, prefix_keys) * scale, softcap)
        weights = torch.cat([before, scores], dim=-1).softmax(-1)
        of_prefix, of_own = weights.split([prefix_keys.shape[1], self.width], dim=-1)
        out = (of_own.flatten(2, 3) @ values).view_as(q)
        return self._collected(out + torch.einsum("rhgmp,hpd->rhgmd", of_prefix, prefix_values))

    def _queries(self, q: Tensor, kv_heads: int) -> Tensor:
        """[n, heads, d] to [R, kv_heads, group, M, d]."""
        if self.slots is not None:
            places = q.new_zeros((self.unseen.shape[0] * self.unseen.shape[2], *q.shape[1:]))
            q = places.index_copy(0, self.slots, q)
        return q.view(len(self.rows), -1, kv_heads, q.shape[1] // kv_heads, q.shape[2]).permute(0, 2, 3, 1, 4)

    def _collected(self, out: Tensor) -> Tensor:
        """[R, kv_heads, group, M, d] to [n, heads, d]."""
        out = out.permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
        return out if self.slots is None else out[self.slots]


def _cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def prefill(
    llm: ValueHeadLLM, prompts: Sequence[TokenIds], known: Sequence[KVCache], *, free_slots: int, row_length: int
) -> tuple[KVCache, Tensor]:
    """The kv_cache of every prompt, and [S, H] hidden states at their ends; what is known of a prompt is not computed again.

    Args:
        llm: whose keys and values they are; its layout is `tree`.
        prompts: token ids, at least one each.
        known: kv_caches that the prompts may go on from.
        free_slots: places to keep free behind the longest.
        row_length: places of a packed row while new prompts are run.
    """
    found = _known(prompts, known)
    fresh = [i for i in range(len(prompts)) if i not in found]
    parts: list[KVCache] = []
    order: list[int] = []
    hidden: list[Tensor] = []
    for number, kv_cache in enumerate(known):
        mine = [i for i, (which, _) in found.items() if which == number]
        if not mine:
            continue
        tails = [prompts[i][len(kv_cache.prefix_ids) + len(kv_cache.rows[found[i][1]]) :] for i in mine]
        part = kv_cache.select([found[i][1] for i in mine], free_slots + max(map(len, tails)))
        states = part.extend(llm, range(len(mine)), tails)
        ends = torch.tensor([len(tail) for tail in tails], device=llm.device).cumsum(0) - 1
        parts, order = [*parts, part], order + mine
        hidden.append(states[ends])
    if fresh:
        for some in split_micro_batches([prompts[i] for i in fresh], tokens_per_forward(llm.device)):
            part, states = _run(llm, [prompts[fresh[n]] for n in some], free_slots, row_length)
            parts, order = [*parts, part], order + [fresh[n] for n in some]
            hidden.append(states)
    kv_cache = join(parts)
    if order == sorted(order) and len(parts) == 1:
        return kv_cache, hidden[0]
    parts.clear()  # `join` has copied them, and `select` copies once more
    back = sorted(range(len(order)), key=order.__getitem__)
    return kv_cache.select(back, free_slots), torch.cat(hidden)[torch.tensor(back, device=llm.device)]


def _known(prompts: Sequence[TokenIds], known: Sequence[KVCache]) -> dict[int, tuple[int, int]]:
    """By prompt: the kv_cache and the row that it goes on from, the longest, with at least one token of the prompt left."""
    rows = {kv_cache.prefix_ids + row: (p, r) for p, kv_cache in enumerate(known) for r, row in enumerate(kv_cache.rows)}
    lengths = sorted({len(ids) for ids in rows}, reverse=True)
    found = {}
    for i, prompt in enumerate(prompts):
        for length in lengths:
            if length < len(prompt) and (place := rows.get(prompt[:length])) is not None:
                found[i] = place
                break
    return found


def cached_prefix_lengths(prompts: Sequence[TokenIds], known: Sequence[KVCache]) -> list[int]:
    """Tokens of each prompt that are in the longest row that it goes on from; 0 where there is none."""
    found = _known(prompts, known)
    rows = [found.get(i) for i in range(len(prompts))]
    return [0 if row is None else len(known[row[0]].prefix_ids) + len(known[row[0]].rows[row[1]]) for row in rows]


def evict_unused(kv_caches: Sequence[KVCache], wanted: Collection[TokenIds]) -> list[KVCache]:
    """Of these, the rows whose tokens, with the prefix, are wanted."""
    left = []
    for kv_cache in kv_caches:
        rows = [r for r, row in enumerate(kv_cache.rows) if kv_cache.prefix_ids + row in wanted]
        if rows:
            left.append(kv_cache if len(rows) == kv_cache.num_rows else kv_cache.select(rows, 0))
    return left


@dataclass
class _Recording:
    """A tree that keeps what goes through it."""

    tree: Tree
    seen: States = field(default_factory=dict)  # [P + N, kv_heads, d]

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        self.seen[module] = k, v
        return self.tree.attend(module, q, k, v, scale, softcap)


def _run(llm: ValueHeadLLM, prompts: Sequence[TokenIds], room: int, row_length: int) -> tuple[KVCache, Tensor]:
    """Runs the distinct prompts: the kv_cache of each prompt, and [S, H] hidden states at their ends."""
    distinct = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    owners = torch.tensor([distinct[prompt] for prompt in prompts], device=llm.device)
    recordings: list[_Recording] = []

    def recorded(tree: Tree) -> _Recording:
        recordings.append(_Recording(tree))
        return recordings[-1]

    prefix, packed = llm.pack_sequences(list(distinct), [len(prompt) for prompt in distinct], row_length=row_length)
    hidden = llm.run_tree(prefix, packed, recorded)
    (recording,) = recordings
    ends = torch.tensor([places[-1] for places in packed.token_index], device=llm.device)
    rows = [prompt[len(prefix) :] for prompt in prompts]
    return _laid_out(recording, packed, prefix, rows, owners, room), hidden[ends[owners]]


def _laid_out(recording: _Recording, packed: PackedRows, prefix: TokenIds, rows: list[TokenIds], owners: Tensor, room: int) -> KVCache:
    """What a tree has computed as rows."""
    index = torch.zeros(len(packed.token_index), max(map(len, packed.token_index)), dtype=torch.int64)
    for number, places in enumerate(packed.token_index):
        index[number, : len(places)] = torch.tensor(places)
    index = index.to(owners.device)[owners] + len(prefix)  # [S, longest rest]
    kv_cache = KVCache(prefix, rows, torch.tensor([len(row) for row in rows], device=owners.device))
    for module, (keys, values) in recording.seen.items():
        kv_cache.prefix[module] = tuple(s[: len(prefix)].transpose(0, 1).contiguous() for s in (keys, values))  # type: ignore[assignment]
        kv_cache.own[module] = _with_room(keys[index].transpose(1, 2), room), _with_room(values[index].transpose(1, 2), room)
    return kv_cache


def _with_room(states: Tensor, room: int) -> Tensor:
    """[S, kv_heads, L, d] with `room` more places behind."""
    return nn.functional.pad(states, (0, 0, 0, room))
