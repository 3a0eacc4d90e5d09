"""Attention along the paths of a token trie, in an order that follows from positions alone.

Queries at positions 0 to 31 of a path are computed together, over its keys at positions 0 to 31; then those
at 32 to 63, over the keys at 0 to 63; and so on. So what a token gets is bit for bit the same in whatever
batch it comes, and whatever comes behind it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor, nn

from lgym.models.prefix_sharing.buckets import RowBucket
from lgym.models.prefix_sharing.tree_attention import AttentionLayout, KVStates

BLOCK = 32


@dataclass(frozen=True)
class _Row:
    """Queries of one block of positions of a path."""

    block: int
    path: list[int]  # the tokens behind the prefix, up to the last query
    queries: list[int]  # those of the path that are in the block, and in no other row


class PositionLayout(AttentionLayout):
    """The attention of n tokens behind a prefix of P.

    Args:
        parents: [n] of each token, the one before it, which comes first; -1 behind the prefix.
        prefix_length: P.
        prefix_kv: the prefix's keys and values [P, kv_heads, d] of every layer; any, where P is 0.
        device: of the pass.
        max_scores: the most query-key pairs that are computed together.

    Attributes:
        order: [n] the tokens as the pass has to have them.
        positions: [n] their positions, in this order.
        recorded: keys and values [P + n, kv_heads, d] of every layer, in this order.
    """

    def __init__(
        self,
        parents: Sequence[int],
        prefix_length: int,
        prefix_kv: KVStates,
        device: torch.device,
        max_scores: int,
    ) -> None:
        positions: list[int] = []
        for parent in parents:
            positions.append(positions[parent] + 1 if parent >= 0 else prefix_length)
        rows = sorted(_rows(parents, positions), key=lambda row: row.block)
        self.order = [token for row in rows for token in row.queries]
        self.positions = [positions[token] for token in self.order]
        self.recorded: KVStates = {}
        self._prefix_kv = prefix_kv if prefix_length else {}
        self._buckets = list(self._make_buckets(rows, positions, prefix_length, device, max_scores))

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None
    ) -> Tensor:
        """Takes the queries, keys and values of the n tokens in order."""
        if module in self._prefix_kv:
            k, v = (torch.cat(pair) for pair in zip(self._prefix_kv[module], (k, v), strict=True))
        self.recorded[module] = k, v
        sizes = [len(bucket.query_slots) for bucket in self._buckets]
        queries = q.unflatten(1, (k.shape[1], -1)).split(sizes)
        outputs = [
            bucket.attend(part, k, v, scale, softcap)
            for bucket, part in zip(self._buckets, queries, strict=True)
        ]
        return torch.cat(outputs, dim=1).transpose(0, 1).flatten(1, 2)

    def _make_buckets(
        self,
        rows: Sequence[_Row],
        positions: Sequence[int],
        prefix_length: int,
        device: torch.device,
        max_scores: int,
    ) -> Iterator[RowBucket]:
        keys = np.empty(len(positions), np.int64)
        keys[self.order] = np.arange(prefix_length, prefix_length + len(positions))
        for block, of_block in groupby(rows, key=lambda row: row.block):
            alike = list(of_block)
            num_keys = BLOCK * (block + 1)
            most = max(1, max_scores // (BLOCK * num_keys))
            for first in range(0, len(alike), most):
                yield _make_bucket(alike[first : first + most], positions, keys, num_keys, device)


def _rows(parents: Sequence[int], positions: Sequence[int]) -> Iterator[_Row]:
    blocks = [position // BLOCK for position in positions]
    continued = {p for token, p in enumerate(parents) if p >= 0 and blocks[p] == blocks[token]}
    taken: set[int] = set()
    for leaf, block in enumerate(blocks):
        if leaf in continued:
            continue
        path, token = list[int](), leaf
        while token >= 0:
            path.append(token)
            token = parents[token]
        path.reverse()
        queries = [token for token in path if blocks[token] == block and token not in taken]
        taken.update(queries)
        yield _Row(block, path, queries)


def _make_bucket(
    rows: Sequence[_Row], positions: Sequence[int], keys: np.ndarray, num_keys: int, device: torch.device
) -> RowBucket:
    key_tokens = np.zeros((len(rows), num_keys), np.int64)
    query_tokens = np.zeros((len(rows), BLOCK), np.int64)
    query_slots: list[int] = []
    for row, (line, queries) in enumerate(zip(rows, query_tokens, strict=True)):
        first = positions[line.path[0]]
        key_tokens[row, :first] = range(first)
        key_tokens[row, first : first + len(line.path)] = keys[line.path]
        slots = [positions[token] % BLOCK for token in line.queries]
        queries[slots] = range(len(query_slots), len(query_slots) + len(slots))
        query_slots += [BLOCK * row + slot for slot in slots]
    causal = np.arange(num_keys) <= np.arange(num_keys - BLOCK, num_keys)[:, None]

    def to_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    none = torch.zeros(0, dtype=torch.int64, device=device)
    return RowBucket(
        prefix_length=0,
        attn_mask=to_device(causal).expand(len(rows), 1, -1, -1),
        query_tokens=to_device(query_tokens.reshape(-1)),
        query_slots=to_device(np.array(query_slots, np.int64)),
        key_tokens=to_device(key_tokens.reshape(-1)),
        key_slots=none,  # the rest is of gradients, which there are none of
        layer_tokens=slice(0),
        row_prefix_tokens=none,
        row_prefix_slots=None,
    )
