"""Token sequences that share beginnings, laid out so that every distinct token is computed once.

Sequences are read as paths of a tree of tokens. A *row* holds a part of that tree, flattened depth first; a token
attends to its ancestors and to nothing else, so its hidden state is what it would be in its own sequence alone:

    the cat sat          row:       the  cat  sat  ran
    the cat ran          position:   0    1    2    2
                         parent:     -    0    1    1

This is exact, whatever the candidates, histories or prompts have in common (the idea of tree attention: Miao et al. 2023,
SpecInfer, arXiv:2305.09781, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Path = tuple[int, ...]


@dataclass(frozen=True)
class PackedRows:
    """R rows of L places; the places behind a row's last token are padding that nothing attends to."""

    token_ids: Tensor  # [R, L] int64
    depths: Tensor  # [R, L] int64, distance from the start of the sequence
    attends: Tensor  # [R, L, L] bool, whether the token at place i sees the token at place j
    lengths: tuple[int, ...]  # tokens of each row
    places: tuple[tuple[int, ...], ...]  # per sequence: the number of each of its tokens, counted row by row without padding

    @property
    def filled(self) -> Tensor:
        """[R, L] bool: the places that hold a token."""
        return torch.arange(self.token_ids.shape[1]) < torch.tensor(self.lengths)[:, None]

    @property
    def real_tokens(self) -> int:
        """Places that hold a token."""
        return sum(self.lengths)

    @property
    def padding_share(self) -> float:
        """The part of all places that holds no token."""
        return 1.0 - self.real_tokens / self.token_ids.numel()


def common_prefix_length(sequences: Sequence[Path]) -> int:
    """How many tokens all sequences begin with in common (0 for none at all)."""
    if not sequences:
        return 0
    first, last = min(sequences), max(sequences)  # in sorted order all others lie between these two
    return _shared_length(first, last)


def pack(sequences: Sequence[Path], *, row_length: int, share: bool = True) -> PackedRows:
    """Packs sequences of at least one token into rows of at most `row_length` places, or of the longest sequence's.

    Sorted sequences lie beside those that they share most with, so one look back finds all there is to share in a
    row; a beginning is computed again only where a new row starts. `share=False` packs every sequence whole into a
    row of its own: the plain computation, to compare with.
    """
    row_length = max(row_length, *map(len, sequences))  # rows are padded to the longest: what fits costs nothing
    rows: list[_Row] = []
    placed: list[tuple[int, list[int]]] = [(0, [])] * len(sequences)
    previous: Path = ()
    for index in sorted(range(len(sequences)), key=sequences.__getitem__):
        path = sequences[index]
        shared = _shared_length(previous, path) if share and rows else 0
        if not rows or not share or len(rows[-1].tokens) + len(path) - shared > row_length:
            rows.append(_Row())
            shared = 0
        placed[index] = (len(rows) - 1, rows[-1].add(path, shared))
        previous = path
    return _assemble(rows, placed)


class _Row:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.last: list[int] = []  # the places of the sequence added last

    def add(self, path: Path, shared: int) -> list[int]:
        places = self.last[:shared]
        for depth in range(shared, len(path)):
            self.parents.append(places[-1] if places else -1)
            places.append(len(self.tokens))
            self.tokens.append(path[depth])
            self.depths.append(depth)
        self.last = places
        return places


def _assemble(rows: list[_Row], placed: list[tuple[int, list[int]]]) -> PackedRows:
    count, length = len(rows), max(len(row.tokens) for row in rows)
    token_ids = np.zeros((count, length), dtype=np.int64)
    depths = np.zeros((count, length), dtype=np.int64)
    attends = np.zeros((count, length, length), dtype=bool)
    attends[:, range(length), range(length)] = True
    for r, row in enumerate(rows):
        token_ids[r, : len(row.tokens)] = row.tokens
        depths[r, : len(row.tokens)] = row.depths
        for place, parent in enumerate(row.parents):
            if parent >= 0:
                attends[r, place] |= attends[r, parent]
    before = np.cumsum([0] + [len(row.tokens) for row in rows]).tolist()
    return PackedRows(
        token_ids=torch.from_numpy(token_ids),
        depths=torch.from_numpy(depths),
        attends=torch.from_numpy(attends),
        lengths=tuple(len(row.tokens) for row in rows),
        places=tuple(tuple(before[r] + place for place in places) for r, places in placed),
    )


def _shared_length(a: Path, b: Path) -> int:
    shared = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        shared += 1
    return shared
