"""Packing of token sequences that share prefixes, so that every distinct token is computed once.

The sequences are the branches of a token trie. A packed row holds a part of the trie, flattened depth first.
A token attends to its ancestors alone, so its hidden state is the one that it has in its own sequence:

    the cat sat          packed row:  the  cat  sat  ran
    the cat ran          position:     0    1    2    2
                         parent:       -    0    1    1

A row that continues tokens of earlier rows has them as its *row prefix*: it attends to their keys and values
and does not compute them again.

The results are exact. Attention along a token trie is the tree attention of SpecInfer (Miao et al. 2023,
arXiv:2305.09781, section 4.2). Sharing prefixes by a radix tree is the idea of SGLang's RadixAttention (Zheng
et al. 2023, arXiv:2312.07104, section 3); here it works within one batch, and gradients flow through the
shared tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

TokenIds = tuple[int, ...]

# A row of n tokens that recomputes s tokens wastes s / n of its work, and its attention grows with n. On a
# CPU the sum is least at n = sqrt(ROW_GROWTH * row_length * s).
ROW_GROWTH = 12

# A row recomputes up to row_length / RECOMPUTE_DIVISOR tokens rather than have a row prefix.
RECOMPUTE_DIVISOR = 8


@dataclass(frozen=True)
class PackedRows:
    """N tokens in R packed rows, numbered row by row."""

    token_ids: Tensor  # [N] int64
    positions: Tensor  # [N] int64, distance from the start of the sequence
    lengths: tuple[int, ...]  # tokens of each row
    attn_masks: tuple[np.ndarray, ...]  # per row of L tokens [L, L] bool, True where query i attends to key j
    row_prefixes: tuple[
        tuple[int, ...], ...
    ]  # per row, indices of the earlier tokens that it continues, by position
    row_prefix_lengths: Tensor  # [N] int64, leading tokens of its row prefix that each token attends to
    token_index: tuple[tuple[int, ...], ...]  # per sequence, the index of each of its tokens

    @property
    def num_tokens(self) -> int:
        """N."""
        return sum(self.lengths)

    @property
    def token_mask(self) -> Tensor:
        """[R, L] bool, True where a row padded to the longest has a token."""
        return torch.arange(max(self.lengths)) < torch.tensor(self.lengths)[:, None]

    def pad(self, column: Tensor) -> Tensor:
        """[N] numbers as padded rows [R, L], with 0 for padding."""
        return column.new_zeros(self.token_mask.shape).masked_scatter(self.token_mask, column)


def common_prefix_length(sequences: Sequence[TokenIds]) -> int:
    """Number of leading tokens that all sequences have in common; 0 for no sequences."""
    first, last = min(sequences, default=()), max(sequences, default=())  # all others sort between these two
    different = (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return next(different, min(len(first), len(last)))


def tokens_per_forward(device: torch.device) -> int:
    """Token budget of a forward pass without gradient; a CPU's caches hold the activations of no more."""
    return 1024 if device.type == "cpu" else 16_384


def ancestor_mask(parents: Sequence[int]) -> np.ndarray:
    """[L, L] bool, True where token i is j or comes behind it, from the parent of each; -1 is no parent."""
    attn_mask = np.eye(len(parents), dtype=bool)
    for query, parent in enumerate(parents):
        if parent >= 0:
            attn_mask[query] |= attn_mask[parent]
    return attn_mask


def split_micro_batches(
    prompts: Sequence[TokenIds],
    max_tokens: int,
    *,
    cached_lengths: Sequence[int] = (),
    extra_tokens: Sequence[int] = (),
) -> Iterator[list[int]]:
    """Micro-batches of prompts under a token budget (vLLM's `max_num_batched_tokens`).

    Prompts are taken in sorted order, in which neighbors share most and have like lengths.

    Args:
        prompts: token ids.
        max_tokens: distinct tokens of a micro-batch behind the prefix that all prompts share. A prompt that
            has more is a micro-batch by itself.
        cached_lengths: leading tokens of each prompt that are in a KV cache.
        extra_tokens: tokens that continue each prompt.

    Yields:
        The indices of the prompts of a micro-batch.
    """
    common = common_prefix_length(prompts)
    batch: list[int] = []
    num_tokens = 0
    for i in sorted(range(len(prompts)), key=prompts.__getitem__):
        cached = max(common, cached_lengths[i]) if cached_lengths else common
        extra = extra_tokens[i] if extra_tokens else 0
        shared = common_prefix_length((prompts[batch[-1]], prompts[i])) if batch else 0
        size = len(prompts[i]) - max(cached, shared) + extra
        if batch and num_tokens + size > max_tokens:
            yield batch
            batch, num_tokens = [], 0
            size = len(prompts[i]) - cached + extra
        batch.append(i)
        num_tokens += size
    if batch:
        yield batch


def pack(
    sequences: Sequence[TokenIds], *, row_length: int, share_prefixes: bool = True, row_prefixes: bool = True
) -> PackedRows:
    """Packs sequences of at least one token into rows of about `row_length` tokens.

    In sorted order the neighbor before a sequence has the longest prefix in common with it. A sequence joins
    the last row while that has room for its new tokens; the more it shares, the longer the row may grow
    (`ROW_GROWTH`). Otherwise it starts a new row, whose row prefix is what it shares. A short one is
    recomputed (`RECOMPUTE_DIVISOR`).

    Args:
        sequences: token ids.
        row_length: tokens of a row.
        share_prefixes: False gives every sequence a row of its own: the plain computation, to compare with.
        row_prefixes: False recomputes what a new row shares with earlier ones.
    """
    rows: list[_Row] = []
    paths: list[_Path] = [[]] * len(sequences)
    longest = max(row_length, *map(len, sequences))
    previous: TokenIds = ()
    path: _Path = []
    for index in sorted(range(len(sequences)), key=sequences.__getitem__):
        token_ids = sequences[index]
        shared = common_prefix_length((previous, token_ids)) if share_prefixes else 0
        length = len(rows[-1].token_ids) + len(token_ids) - shared if rows and share_prefixes else None
        if length is None or length > _max_row_length(row_length, shared, longest, row_prefixes):
            shared = shared if row_prefixes and RECOMPUTE_DIVISOR * shared > row_length else 0
            rows.append(_Row(path[:shared]))
        path = paths[index] = rows[-1].append(token_ids, path[:shared])
        previous = token_ids
    return _flatten(rows, paths)


def _max_row_length(row_length: int, shared: int, longest: int, row_prefixes: bool) -> int:
    # a CPU multiplies 66 columns more slowly than 96
    grown = isqrt(ROW_GROWTH * row_length * shared) // 32 * 32
    if not row_prefixes:  # a new row would recompute all that is shared
        return max(longest, grown, min(8 * shared, 8 * row_length), 2 * shared)
    return max(row_length, grown, shared + row_length if 2 * shared > row_length else 0)


_Path = list[tuple["_Row", int]]  # for each token of a sequence its row, and its position there


@dataclass(eq=False)
class _Row:
    prefix: _Path
    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)  # places in the row; -1 if not in it
    positions: list[int] = field(default_factory=list)
    prefix_lengths: list[int] = field(default_factory=list)

    def append(self, token_ids: TokenIds, path: _Path) -> _Path:
        """Adds the tokens behind a path that is in the row or its prefix; returns the path of all tokens."""
        path = list(path)
        for position in range(len(path), len(token_ids)):
            row, parent = path[-1] if path else (None, -1)
            self.parents.append(parent if row is self else -1)
            self.prefix_lengths.append(self.prefix_lengths[parent] if row is self else position)
            path.append((self, len(self.token_ids)))
            self.token_ids.append(token_ids[position])
            self.positions.append(position)
        return path


def _flatten(rows: list[_Row], paths: list[_Path]) -> PackedRows:
    # like rows side by side: first those without a prefix, by length, then the others in order
    rows = sorted(rows, key=lambda row: (bool(row.prefix), 0 if row.prefix else -len(row.token_ids)))
    lengths = tuple(len(row.token_ids) for row in rows)
    starts = dict(zip(rows, accumulate(lengths, initial=0), strict=False))

    def token_index(path: _Path) -> tuple[int, ...]:
        return tuple([starts[row] + position for row, position in path])

    return PackedRows(
        token_ids=torch.tensor([token for row in rows for token in row.token_ids]),
        positions=torch.tensor([position for row in rows for position in row.positions]),
        lengths=lengths,
        attn_masks=tuple(ancestor_mask(row.parents) for row in rows),
        row_prefixes=tuple(token_index(row.prefix) for row in rows),
        row_prefix_lengths=torch.tensor([length for row in rows for length in row.prefix_lengths]),
        token_index=tuple(map(token_index, paths)),
    )


def run_behind_prefix(body: Any, packed: PackedRows, prefix_length: int, cache: Any) -> Tensor:
    """Runs packed rows as a padded batch, each behind a copy of the common prefix's keys and values.

    Args:
        body: a transformers model without its head, whose attention cannot be replaced by tree attention.
        packed: N tokens in rows without row prefixes.
        prefix_length: tokens of the common prefix.
        cache: transformers' cache of the common prefix, which is changed; None for no prefix.

    Returns:
        [N, H] hidden states.
    """
    embedding = body.get_input_embeddings().weight
    rows, length = packed.token_mask.shape
    if cache is not None:
        cache.batch_repeat_interleave(rows)
    attn_mask = torch.eye(length, dtype=torch.bool).repeat(rows, 1, 1)  # padding attends to itself alone
    for padded, row_mask in zip(attn_mask, packed.attn_masks, strict=True):
        padded[: len(row_mask), : len(row_mask)] = torch.from_numpy(row_mask)
    attn_bias = torch.zeros(
        (rows, 1, length, prefix_length + length), dtype=embedding.dtype, device=embedding.device
    )
    masked = ~attn_mask.to(embedding.device).unsqueeze(1)
    attn_bias[..., prefix_length:].masked_fill_(masked, torch.finfo(embedding.dtype).min)
    hidden = body(
        input_ids=packed.pad(packed.token_ids).to(embedding.device),
        position_ids=packed.pad(packed.positions).to(embedding.device) + prefix_length,
        attention_mask=attn_bias,
        past_key_values=cache,
        use_cache=cache is not None,
    ).last_hidden_state
    return hidden[packed.token_mask.to(embedding.device)]


def run_padded(body: Any, packed: PackedRows) -> Tensor:
    """[N, H] hidden states of one sequence per row, padded on the right, which any causal model takes."""
    mask = packed.token_mask.to(body.get_input_embeddings().weight.device)
    ids = packed.pad(packed.token_ids).to(mask.device)
    return body(input_ids=ids, attention_mask=mask.long()).last_hidden_state[mask]
