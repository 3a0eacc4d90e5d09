"""KV caches of sequences that are continued: responses that are being generated, and conversations.

The prefix that all sequences share is stored once, and what follows it in a row per sequence (cascade
attention):

    prefix_kv   keys [kv_heads, P, d]
    suffix_kv   keys [S, kv_heads, T, d]

A cache is valid while the weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import TokenIds, common_prefix_length
from lgym.models.prefix_sharing.tree_attention import KVStates, soft_cap


def map_kv(function: Callable[[Tensor], Tensor], states: KVStates) -> KVStates:
    """Applies a function to the keys and to the values of every layer."""
    return {module: (function(keys), function(values)) for module, (keys, values) in states.items()}


@dataclass
class KVCache:
    """Keys and values of S sequences."""

    prefix_ids: TokenIds
    suffix_ids: list[TokenIds]  # per row, the tokens behind the prefix
    lengths: Tensor  # [S] int64, tokens of each suffix
    prefix_kv: KVStates = field(default_factory=dict)
    suffix_kv: KVStates = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """S."""
        return len(self.suffix_ids)

    @property
    def max_length(self) -> int:
        """Tokens of the longest suffix."""
        return max(map(len, self.suffix_ids), default=0)

    def select(self, rows: Sequence[int], free_slots: int) -> KVCache:
        """A copy of these rows, which may repeat, with so many free slots behind the longest."""
        index = torch.tensor(rows, device=self.lengths.device)
        suffix_ids = [self.suffix_ids[row] for row in rows]
        length = max(map(len, suffix_ids))

        def copy(states: Tensor) -> Tensor:
            chosen = states.new_zeros((len(rows), states.shape[1], length + free_slots, states.shape[3]))
            chosen[:, :, :length] = states[:, :, :length].index_select(0, index)
            return chosen

        return KVCache(
            self.prefix_ids, suffix_ids, self.lengths[index], self.prefix_kv, map_kv(copy, self.suffix_kv)
        )

    def shorten_prefix(self, length: int) -> KVCache:
        """The same sequences with a prefix of at most `length` tokens; its rest moves to every suffix."""
        if length >= len(self.prefix_ids):
            return self
        moved_ids = self.prefix_ids[length:]
        moved = map_kv(
            lambda states: states[None, :, length:].expand(self.num_rows, -1, -1, -1), self.prefix_kv
        )
        suffix_kv: KVStates = {
            module: (torch.cat([moved[module][0], keys], dim=2), torch.cat([moved[module][1], values], dim=2))
            for module, (keys, values) in self.suffix_kv.items()
        }
        return KVCache(
            self.prefix_ids[:length],
            [moved_ids + suffix for suffix in self.suffix_ids],
            self.lengths + len(moved_ids),
            map_kv(lambda states: states[:, :length], self.prefix_kv),
            suffix_kv,
        )

    def extend(self, llm: ValueHeadLLM, rows: Sequence[int], new_ids: Sequence[TokenIds]) -> Tensor:
        """Appends one or more tokens to each of some rows, which must have the free slots.

        Returns:
            [tokens, H] hidden states of the new tokens, row by row.
        """
        device = self.lengths.device
        token_ids = torch.tensor([token for ids in new_ids for token in ids], device=device)
        one_each = len(token_ids) == len(new_ids)
        counts = None if one_each else torch.tensor([len(ids) for ids in new_ids], device=device)
        row_index = torch.tensor(rows, device=device)
        for row, ids in zip(rows, new_ids, strict=True):
            self.suffix_ids[row] += ids
        step = DecodeStep.from_cache(self, row_index, counts, self.max_length)
        hidden = llm.run_step(token_ids, step.positions + len(self.prefix_ids), step)
        self.lengths[row_index] += 1 if counts is None else counts
        return hidden


def concat_kv_caches(kv_caches: Sequence[KVCache]) -> KVCache:
    """The rows of all caches in one, behind the prefix that they have in common."""
    if len(kv_caches) == 1:
        return kv_caches[0]
    common = common_prefix_length([kv_cache.prefix_ids for kv_cache in kv_caches])
    kv_caches = [kv_cache.shorten_prefix(common) for kv_cache in kv_caches]

    def concat(states: Sequence[Tensor]) -> Tensor:
        slots = max(part.shape[2] for part in states)
        return torch.cat([pad(part, (0, 0, 0, slots - part.shape[2])) for part in states])

    suffix_kv: KVStates = {}
    for module in kv_caches[0].suffix_kv:
        keys, values = zip(*(kv_cache.suffix_kv[module] for kv_cache in kv_caches), strict=True)
        suffix_kv[module] = concat(keys), concat(values)
    return KVCache(
        kv_caches[0].prefix_ids,
        [suffix for kv_cache in kv_caches for suffix in kv_cache.suffix_ids],
        torch.cat([kv_cache.lengths for kv_cache in kv_caches]),
        kv_caches[0].prefix_kv,
        suffix_kv,
    )


@dataclass
class DecodeStep:
    """Attention layout of n new tokens that continue rows of a KV cache, one or more per row."""

    kv_cache: KVCache
    rows: Tensor  # [R] int64, the rows that are continued
    max_length: int  # of the longest suffix, new tokens included
    row_index: Tensor  # [n] int64, the row of each token
    positions: Tensor  # [n] int64, the position of each token in its suffix
    slots: Tensor | None  # [n] int64, the slot of each token among R * M queries; None for one token per row
    masked: Tensor  # [R, 1, M, max_length] bool, True where a query does not attend to a position

    @staticmethod
    def from_cache(kv_cache: KVCache, rows: Tensor, counts: Tensor | None, max_length: int) -> DecodeStep:
        """One new token behind each of the rows, or `counts` [R]."""
        lengths = kv_cache.lengths[rows]
        keys = torch.arange(max_length, device=rows.device)
        if counts is None:
            return DecodeStep(
                kv_cache, rows, max_length, rows, lengths, None, (keys > lengths[:, None])[:, None, None]
            )
        steps = torch.arange(int(counts.max()), device=rows.device)
        real = steps < counts[:, None]  # [R, M]
        positions = lengths[:, None] + steps
        slots = real.flatten().nonzero().squeeze(1)
        row_index = rows.repeat_interleave(counts)
        masked = (keys > positions[..., None])[:, None]
        return DecodeStep(kv_cache, rows, max_length, row_index, positions[real], slots, masked)

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None
    ) -> Tensor:
        """Writes the new keys and values to the cache and attends to it: [n, heads, d]."""
        keys, values = self.kv_cache.suffix_kv[module]
        keys[self.row_index, :, self.positions] = k
        values[self.row_index, :, self.positions] = v
        all_rows = len(self.rows) == len(keys)
        keys, values = ((s if all_rows else s[self.rows])[:, :, : self.max_length] for s in (keys, values))
        q = self._scatter(q, k.shape[1])  # [R, kv_heads, group, M, d]
        scores = (q.flatten(2, 3) @ keys.transpose(-1, -2) * scale).unflatten(2, q.shape[2:4])
        scores = soft_cap(scores, softcap).masked_fill(self.masked[:, :, None], -torch.inf)
        if not self.kv_cache.prefix_ids:
            return self._gather((scores.softmax(-1).flatten(2, 3) @ values).view_as(q))
        prefix_keys, prefix_values = self.kv_cache.prefix_kv[module]  # [kv_heads, P, d]
        prefix_scores = soft_cap(torch.einsum("rhgmd,hpd->rhgmp", q, prefix_keys) * scale, softcap)
        weights = torch.cat([prefix_scores, scores], dim=-1).softmax(-1)
        prefix_weights, suffix_weights = weights.split([prefix_keys.shape[1], self.max_length], dim=-1)
        out = (suffix_weights.flatten(2, 3) @ values).view_as(q)
        return self._gather(out + torch.einsum("rhgmp,hpd->rhgmd", prefix_weights, prefix_values))

    def _scatter(self, q: Tensor, kv_heads: int) -> Tensor:
        # [n, heads, d] to [R, kv_heads, group, M, d]
        if self.slots is not None:
            padded = q.new_zeros((self.masked.shape[0] * self.masked.shape[2], *q.shape[1:]))
            q = padded.index_copy(0, self.slots, q)
        return q.view(len(self.rows), -1, kv_heads, q.shape[1] // kv_heads, q.shape[2]).permute(0, 2, 3, 1, 4)

    def _gather(self, out: Tensor) -> Tensor:
        # [R, kv_heads, group, M, d] to [n, heads, d]
        out = out.permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
        return out if self.slots is None else out[self.slots]
