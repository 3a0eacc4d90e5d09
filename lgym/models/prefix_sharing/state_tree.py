"""A prefix tree of token ids with a vector for each token in its place, within a limit of bytes."""

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

Trie = Sequence[tuple[int, int]]
"""Distinct tokens: of each the number of the one before it, which comes first, or -1, and its id."""

MISSING = -1
FEWEST = 1024
"""Vectors that there is room for at first."""


class StateTree:
    """Vectors of tokens by all tokens up to them; those that were asked for least recently are left out.

    Args:
        max_bytes: the most that the vectors take.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._states = torch.empty(0, 0)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._nodes: dict[tuple[int, int], int] = {}  # by the node before and the token
        self._roots: dict[Hashable, int] = {}
        self._last_used = np.zeros(0, np.int64)
        self._calls = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, trie: Trie, root: Hashable) -> np.ndarray:
        """[n] nodes of tokens, `MISSING` where there is none.

        Args:
            trie: n tokens.
            root: what else the vectors depend on.
        """
        first = self._roots.setdefault(root, MISSING - 1 - len(self._roots))
        found: list[int] = []
        for parent, token in trie:
            before = found[parent] if parent >= 0 else first
            found.append(MISSING if before == MISSING else self._nodes.get((before, token), MISSING))
        nodes = np.array(found, np.int64)
        self._calls += 1
        self._last_used[nodes[nodes != MISSING]] = self._calls
        return nodes

    def states(self, nodes: np.ndarray) -> Tensor:
        """[n, H] vectors of nodes."""
        return self._states[torch.from_numpy(nodes).to(self._states.device)]

    def add(self, trie: Trie, root: Hashable, new: np.ndarray, states: Tensor) -> None:
        """Keep vectors of tokens for which `find` has just found no node, as many as there is room for.

        Args:
            trie: as `find` takes it.
            root: likewise.
            new: [m] int64, ascending, the numbers of these tokens.
            states: [m, H] their vectors.
        """
        like = states.device, states.dtype, states.shape[1]
        if like != (self._states.device, self._states.dtype, self._states.shape[1]):
            self.clear()
            self._states = states.new_empty(0, states.shape[1])
        most = self.max_bytes // (states.shape[1] * states.element_size())
        if len(self) + len(new) > most:
            self._evict(most // 2)
        nodes = self.find(trie, root)
        rows: list[int] = []
        for row, number in enumerate(new.tolist()):
            parent, token = trie[number]
            before = int(nodes[parent]) if parent >= 0 else self._roots[root]
            if before == MISSING or len(self._nodes) == most:
                continue
            nodes[number] = self._nodes[before, token] = len(self._nodes)
            rows.append(row)
        self._make_room(len(self._nodes), most)
        count = len(self._nodes)
        self._states[count - len(rows) : count] = states[rows]
        self._last_used[count - len(rows) : count] = self._calls

    def _make_room(self, count: int, most: int) -> None:
        if count > len(self._states):
            room = min(most, max(FEWEST, 2 * count))
            states = self._states.new_empty(room, self._states.shape[1])
            states[: len(self._states)] = self._states
            self._states = states
            self._last_used = np.pad(self._last_used, (0, room - len(self._last_used)))

    def _evict(self, keep: int) -> None:
        # a token was used whenever one behind it was, so what is kept hangs together
        count = len(self._nodes)
        if count <= keep:
            return
        used = self._last_used[:count]
        kept = used > np.partition(used, count - keep - 1)[count - keep - 1]
        numbers = np.cumsum(kept) - 1
        self._nodes = {
            (int(numbers[before]) if before >= 0 else before, token): int(numbers[node])
            for (before, token), node in self._nodes.items()
            if kept[node]
        }
        places = np.flatnonzero(kept)
        self._states[: len(places)] = self._states[torch.from_numpy(places).to(self._states.device)]
        self._last_used = np.pad(used[kept], (0, len(self._last_used) - len(places)))
