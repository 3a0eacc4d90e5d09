"""KV caches of sequences that are continued: responses that are being generated, and conversations.

The prefix that all sequences share is stored once, and what follows it in a row per sequence (cascade
attention):

    prefix_kv   keys [kv_heads, P, d]
    suffix_kv   keys [S, kv_heads, T, d]

A cache is valid while the weights stay as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import TokenIds, common_prefix_length
from lgym.models.prefix_sharing.tree_attention import KVStates, soft_cap


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Memory of a token's keys and values in all layers; 0 for a model without attention."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return 0
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * kv_heads * size * dtype.itemsize


def map_kv(function: Callable[..., Tensor], *states: KVStates) -> KVStates:
    """Applies a function to the keys of every layer, one argument per cache, and to the values."""
    return {
        module: (function(*(kv[module][0] for kv in states)), function(*(kv[module][1] for kv in states)))
        for module in states[0]
    }


@dataclass
class KVCache:
    """Keys and values of S sequences."""

    prefix_ids: TokenIds
    suffix_ids: list[TokenIds]  # per row, the tokens behind the prefix
    prefix_kv: KVStates
    suffix_kv: KVStates

    @property
    def num_rows(self) -> int:
        """S."""
        return len(self.suffix_ids)

    @property
    def lengths(self) -> list[int]:
        """[S] tokens of each suffix."""
        return list(map(len, self.suffix_ids))

    def select(self, rows: Sequence[int], free_slots: int) -> "KVCache":
        """A copy of these rows, which may repeat, with so many free slots behind the longest."""
        suffix_ids = [self.suffix_ids[row] for row in rows]
        length = max(map(len, suffix_ids))
        some_keys, _ = next(iter(self.suffix_kv.values()))
        index = torch.tensor(rows, device=some_keys.device)

        def copy(states: Tensor) -> Tensor:
            return pad(states[:, :, :length].index_select(0, index), (0, 0, 0, free_slots))

        return KVCache(self.prefix_ids, suffix_ids, self.prefix_kv, map_kv(copy, self.suffix_kv))

    def shorten_prefix(self, length: int) -> "KVCache":
        """The same sequences with a prefix of at most `length` tokens; its rest moves to every suffix."""
        if length >= len(self.prefix_ids):
            return self

        def join(prefix: Tensor, suffix: Tensor) -> Tensor:
            return torch.cat([prefix[:, length:].expand(self.num_rows, -1, -1, -1), suffix], dim=2)

        return KVCache(
            self.prefix_ids[:length],
            [self.prefix_ids[length:] + suffix for suffix in self.suffix_ids],
            map_kv(lambda states: states[:, :length], self.prefix_kv),
            map_kv(join, self.prefix_kv, self.suffix_kv),
        )

    def extend(self, llm: ValueHeadLLM, new_ids: Sequence[TokenIds]) -> Tensor:
        """Appends one or more tokens to each row; the rows must have the free slots.

        Returns:
            [tokens, H] hidden states of the new tokens, row by row.
        """
        token_ids = torch.tensor(list(chain.from_iterable(new_ids)), device=llm.device)
        lengths = torch.tensor(self.lengths, device=llm.device)
        self.suffix_ids = [suffix + ids for suffix, ids in zip(self.suffix_ids, new_ids, strict=True)]
        step = DecodeStep.from_cache(
            self,
            torch.arange(self.num_rows, device=llm.device),
            lengths,
            counts=list(map(len, new_ids)),
            max_length=max(self.lengths),
        )
        return llm.run_step(token_ids, step.positions + len(self.prefix_ids), step)


def concat_kv_caches(kv_caches: Sequence[KVCache]) -> KVCache:
    """The rows of all caches in one, behind the prefix that they have in common."""
    if len(kv_caches) == 1:
        return kv_caches[0]
    common = common_prefix_length([kv_cache.prefix_ids for kv_cache in kv_caches])
    kv_caches = [kv_cache.shorten_prefix(common) for kv_cache in kv_caches]

    def concat(*states: Tensor) -> Tensor:
        slots = max(part.shape[2] for part in states)
        return torch.cat([pad(part, (0, 0, 0, slots - part.shape[2])) for part in states])

    return KVCache(
        kv_caches[0].prefix_ids,
        [suffix for kv_cache in kv_caches for suffix in kv_cache.suffix_ids],
        kv_caches[0].prefix_kv,
        map_kv(concat, *(kv_cache.suffix_kv for kv_cache in kv_caches)),
    )


@dataclass
class DecodeStep:
    """Attention layout of n new tokens that continue R rows of a KV cache, up to M per row."""

    kv_cache: KVCache
    rows: Tensor  # [R] int64, the rows that are continued
    row_index: Tensor  # [n] int64, the row of each token
    positions: Tensor  # [n] int64, the position of each token in its suffix
    slots: Tensor | None  # [n] int64, the slot of each token among R * M queries; None if all have M
    masked: Tensor  # [R, 1, M, T] bool, True where a query does not attend to a position

    @staticmethod
    def from_cache(
        kv_cache: KVCache, rows: Tensor, lengths: Tensor, counts: Sequence[int], max_length: int
    ) -> "DecodeStep":
        """`counts` new tokens behind rows of `lengths` [R], of which the longest gets `max_length`."""
        steps = torch.arange(max(counts), device=rows.device)
        positions = lengths[:, None] + steps  # [R, M]
        masked = (torch.arange(max_length, device=rows.device) > positions[..., None])[:, None]
        row_index = rows[:, None].expand_as(positions).flatten()
        step = DecodeStep(kv_cache, rows, row_index, positions.flatten(), None, masked)
        if min(counts) == len(steps):
            return step
        real = steps < torch.tensor(counts, device=rows.device)[:, None]
        slots = real.flatten().nonzero().squeeze(1)
        return replace(step, row_index=row_index[slots], positions=step.positions[slots], slots=slots)

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None
    ) -> Tensor:
        """Writes the new keys and values to the cache and attends to it: [n, heads, d]."""
        keys, values = self.kv_cache.suffix_kv[module]
        keys[self.row_index, :, self.positions] = k
        values[self.row_index, :, self.positions] = v
        all_rows = len(self.rows) == len(keys)
        length = self.masked.shape[-1]
        keys, values = ((s if all_rows else s[self.rows])[:, :, :length] for s in (keys, values))
        q = self._scatter(q * scale, k.shape[1])  # [R, kv_heads, group, M, d]; scaled first: fp16 has no room
        scores = (q.flatten(2, 3) @ keys.transpose(-1, -2)).unflatten(2, q.shape[2:4])
        scores = soft_cap(scores, softcap).masked_fill(self.masked[:, :, None], -torch.inf)
        if not self.kv_cache.prefix_ids:
            return self._gather((scores.softmax(-1).flatten(2, 3) @ values).view_as(q))
        prefix_keys, prefix_values = self.kv_cache.prefix_kv[module]  # [kv_heads, P, d]
        prefix_scores = soft_cap(torch.einsum("rhgmd,hpd->rhgmp", q, prefix_keys), softcap)
        weights = torch.cat([prefix_scores, scores], dim=-1).softmax(-1)
        prefix_weights, suffix_weights = weights.split([prefix_keys.shape[1], length], dim=-1)
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
