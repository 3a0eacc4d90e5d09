"""Token sequences that share beginnings, laid out so that every distinct token is computed once.

Sequences are read as paths of a tree of tokens. A *row* holds a part of that tree, flattened depth first; a token
attends to its ancestors and to nothing else, so its hidden state is what it would be in its own sequence alone:

    the cat sat          row:       the  cat  sat  ran
    the cat ran          position:   0    1    2    2
                         parent:     -    0    1    1

A row that goes on from tokens of earlier rows has these as its *trunk*: it attends to their keys and values, and does not
compute them again.

This is exact, whatever the candidates, histories or prompts have in common (the idea of tree attention: Miao et al. 2023,
SpecInfer, arXiv:2305.09781, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isqrt

import numpy as np
import torch
from torch import Tensor

TokenIds = tuple[int, ...]

GROWTH = 12
"""How far a row grows for what it shares. A row of n places that computes s tokens again costs s / n of its tokens, and its
attention grows with n: together they are least at n = sqrt(GROWTH * row_length * s), with the attention of a CPU."""

RECOMPUTED = 8
"""A row computes up to 1 / RECOMPUTED of `row_length` again rather than have a trunk."""


@dataclass(frozen=True)
class PackedRows:
    """N tokens in R rows. Tokens are numbered row by row."""

    token_ids: Tensor  # [N] int64
    positions: Tensor  # [N] int64, distance from the start of the sequence
    lengths: tuple[int, ...]  # tokens of each row
    attn_masks: tuple[np.ndarray, ...]  # per row of L tokens [L, L] bool, whether the token at place i sees that at place j
    row_prefixes: tuple[tuple[int, ...], ...]  # per row the tokens of earlier rows that it goes on from, by depth
    row_prefix_lengths: Tensor  # [N] int64, how many of its row's trunk each token sees
    token_index: tuple[tuple[int, ...], ...]  # per sequence the number of each of its tokens

    @property
    def num_tokens(self) -> int:
        """N."""
        return sum(self.lengths)

    @property
    def token_mask(self) -> Tensor:
        """[R, L] bool: which places hold a token where every row has as many as the longest."""
        return torch.arange(max(self.lengths)) < torch.tensor(self.lengths)[:, None]

    def pad(self, column: Tensor) -> Tensor:
        """[R, L] of one number per token [N], 0 behind a row's end."""
        return column.new_zeros(self.token_mask.shape).masked_scatter(self.token_mask, column)

    def padded_attn_mask(self) -> Tensor:
        """[R, L, L] bool of rows without trunks; a place without a token sees itself alone."""
        length = max(self.lengths)
        attends = torch.eye(length, dtype=torch.bool).repeat(len(self.lengths), 1, 1)
        for row, own in zip(attends, self.attn_masks, strict=True):
            row[: len(own), : len(own)] = torch.from_numpy(own)
        return attends


def common_prefix_length(sequences: Sequence[TokenIds]) -> int:
    """How many tokens all sequences begin with in common (0 for none at all)."""
    if not sequences:
        return 0
    first, last = min(sequences), max(sequences)  # in sorted order all others lie between these two
    return shared_length(first, last)


def shared_length(a: TokenIds, b: TokenIds) -> int:
    """How many tokens two sequences begin with in common."""
    shared = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        shared += 1
    return shared


def split_micro_batches(
    prompts: Sequence[TokenIds], max_tokens: int, *, cached_lengths: Sequence[int] = (), extra_tokens: Sequence[int] = ()
) -> Iterator[list[int]]:
    """The numbers of prompts that go into one pass together: of `max_tokens` distinct tokens behind what all share, or of
    one prompt. Neighbours in sorted order share the most, and are of like length.

    Args:
        prompts: token ids.
        max_tokens: of a pass.
        cached_lengths: of how many tokens of each prompt keys and values are there already.
        extra_tokens: tokens that go on from each prompt.
    """
    common = common_prefix_length(prompts)
    part: list[int] = []
    count = 0
    previous: TokenIds = ()
    for i in sorted(range(len(prompts)), key=prompts.__getitem__):
        there = max(common, cached_lengths[i]) if cached_lengths else common
        behind = extra_tokens[i] if extra_tokens else 0
        size = len(prompts[i]) - max(there, shared_length(previous, prompts[i])) + behind
        if part and count + size > max_tokens:
            yield part
            part, count = [], 0
            size = len(prompts[i]) - there + behind
        part.append(i)
        count += size
        previous = prompts[i]
    if part:
        yield part


def pack(sequences: Sequence[TokenIds], *, row_length: int, share_prefixes: bool = True, row_prefixes: bool = True) -> PackedRows:
    """Packs sequences of at least one token into rows of about `row_length` places.

    Sorted sequences lie beside those that they share most with, so one look back finds all there is to share. A sequence
    joins the last row as long as that has room for what is new of it: more room, the more it shares (`GROWTH`). Another
    row goes on from the tokens that are there already, as its trunk; where these are few (`RECOMPUTED`), or without
    `row_prefixes`, it computes them again. `share_prefixes=False` packs every sequence whole into a row of its own: the plain
    computation, to compare with.
    """
    rows: list[_Row] = []
    placed: list[list[_Place]] = [[]] * len(sequences)
    longest = max(row_length, *map(len, sequences))
    previous: TokenIds = ()
    trail: list[_Place] = []
    for index in sorted(range(len(sequences)), key=sequences.__getitem__):
        path = sequences[index]
        shared = shared_length(previous, path) if share_prefixes and rows else 0
        if not (share_prefixes and rows and len(rows[-1].tokens) + len(path) - shared <= _room(row_length, shared, longest, row_prefixes)):
            kept = row_prefixes and RECOMPUTED * shared > row_length
            shared = shared if kept else 0
            rows.append(_Row(trail[:shared]))
        trail = placed[index] = rows[-1].add(path, trail[:shared])
        previous = path
    return _numbered(rows, placed)


def _room(row_length: int, shared: int, longest: int, trunks: bool) -> int:
    """Places of a row that a sequence which shares so many tokens with the last one may fill up."""
    grown = isqrt(GROWTH * row_length * shared) // 32 * 32  # a CPU multiplies 66 places more slowly than 96
    if not trunks:  # another row would compute all of it again
        return max(longest, grown, min(8 * shared, 8 * row_length), 2 * shared)
    return max(row_length, grown, shared + row_length if 2 * shared > row_length else 0)


@dataclass(eq=False)
class _Row:
    """A row in the making."""

    trunk: list[_Place]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)  # places in the row; -1 where the parent is in the trunk, or none
    depths: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)  # of the trunk

    def add(self, path: TokenIds, trail: list[_Place]) -> list[_Place]:
        """Adds what follows the trail, which is in the row or its trunk; where each token of the path is."""
        trail = list(trail)
        for depth in range(len(trail), len(path)):
            inside = depth > 0 and trail[-1][0] is self
            self.parents.append(trail[-1][1] if inside else -1)
            self.seen.append(self.seen[trail[-1][1]] if inside else depth)
            trail.append((self, len(self.tokens)))
            self.tokens.append(path[depth])
            self.depths.append(depth)
        return trail

    def attends(self) -> np.ndarray:
        """[L, L] bool."""
        attends = np.eye(len(self.tokens), dtype=bool)
        for place, parent in enumerate(self.parents):
            if parent >= 0:
                attends[place] |= attends[parent]
        return attends


_Place = tuple[_Row, int]
"""A row and a place in it."""


def _numbered(rows: list[_Row], placed: list[list[_Place]]) -> PackedRows:
    """The rows with those beside each other that are alike: without a trunk by length, then the others as they come."""
    rows = sorted(rows, key=lambda row: (bool(row.trunk), 0 if row.trunk else -len(row.tokens)))
    first: dict[_Row, int] = {}
    count = 0
    for row in rows:
        first[row] = count
        count += len(row.tokens)

    def numbers(places: list[_Place]) -> tuple[int, ...]:
        return tuple([first[row] + place for row, place in places])

    return PackedRows(
        token_ids=torch.tensor([token for row in rows for token in row.tokens]),
        positions=torch.tensor([depth for row in rows for depth in row.depths]),
        lengths=tuple(len(row.tokens) for row in rows),
        attn_masks=tuple(row.attends() for row in rows),
        row_prefixes=tuple(numbers(row.trunk) for row in rows),
        row_prefix_lengths=torch.tensor([seen for row in rows for seen in row.seen]),
        token_index=tuple(map(numbers, placed)),
    )
