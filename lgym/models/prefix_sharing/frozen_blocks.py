"""Frozen blocks once a run: what comes out of the blocks below the first adapter, kept by token.

With `lora.last_blocks` these blocks never change, so what comes out of them is a constant of a token and of
those before it. It is kept in a prefix tree, as SGLang's RadixAttention keeps keys and values (Zheng et al.
2023, arXiv:2312.07104, section 3), and every later pass, playing or learning, starts above these blocks.

What comes out depends neither on what was kept before nor on the batch that it is computed in: attention sums
over the tokens of a sequence in an order that follows from their positions alone. So a run that is resumed
with nothing kept ends bit for bit as one that was not interrupted.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from lgym.models.prefix_sharing.buckets import score_limit
from lgym.models.prefix_sharing.packing import PackedRows, TokenIds, common_prefix_length
from lgym.models.prefix_sharing.position_layout import PositionLayout
from lgym.models.prefix_sharing.state_tree import MISSING, StateTree, Trie
from lgym.models.prefix_sharing.tree_attention import KVStates

CPU_TOKENS, ACCELERATOR_TOKENS = 16, 512
"""Tokens of a pass are filled up to a multiple. A CPU multiplies fewer than 16 rows in another order; an
accelerator may choose its order by the number of rows, and so gets few different ones."""

PROBED = 40
"""Tokens of each sequence that they are tried on: more than one block of positions."""


def find_frozen_blocks(causal_lm: Any, max_bytes: int) -> "FrozenBlocks | None":
    """The blocks below the first one that is trained or has adapters; None where there are none.

    bitsandbytes' 8-bit layers compute columns with outliers apart, which depend on the batch, so that what
    comes out of them is no constant.

    Args:
        causal_lm: a model of transformers.
        max_bytes: the most to keep of what comes out of them.
    """
    body = causal_lm.base_model
    blocks = blocks_of(causal_lm)
    if not blocks or not _is_constant(body.get_input_embeddings()):
        return None
    frozen = next((number for number, block in enumerate(blocks) if not _is_constant(block)), 0)
    return FrozenBlocks(body, blocks, frozen, max_bytes) if frozen else None


def blocks_of(causal_lm: Any) -> list[nn.Module]:
    """The blocks of a model of transformers, in their order; none where they are in no list."""
    count = causal_lm.config.get_text_config().num_hidden_layers
    lists = (m for m in causal_lm.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    return list(next(lists, ()))


def _is_constant(module: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in module.parameters()) and not any(
        isinstance(part, BaseTunerLayer) or type(part).__name__ == "Linear8bitLt" for part in module.modules()
    )


class FrozenBlocks:
    """The first blocks of a model, and what comes out of them.

    Args:
        body: a model of transformers without its head, which takes layouts.
        blocks: all of its blocks.
        count: how many of them are frozen: at least one, and not all.
        max_bytes: the most that is kept.
    """

    def __init__(self, body: Any, blocks: Sequence[nn.Module], count: int, max_bytes: int) -> None:
        self._body = body
        self._blocks = blocks
        self._count = count
        self._tree = StateTree(max_bytes)
        self._prefix: tuple[TokenIds, Hashable, KVStates] = ((), None, {})  # with its keys and values
        self.tokens_computed = 0

    @torch.no_grad()
    def depends_on_batch(self) -> bool:
        """Check if what comes out for some tokens changes with those beside them, as where products of this
        shape are summed in an order that follows from the number of rows."""
        tokens = [(n - 1 if n % PROBED else -1, 3 + n % 11) for n in range(3 * PROBED)]  # three sequences
        root = self._root()
        alone, beside = (self._run((), tokens[:n], range(n), root) for n in (PROBED, len(tokens)))
        self.tokens_computed = 0
        return not torch.equal(alone, beside[:PROBED])

    @torch.no_grad()
    def states(self, prefix: TokenIds, packed: PackedRows) -> Tensor:
        """[P + N, H] what comes out of the frozen blocks for the tokens of a prefix and of packed rows."""
        trie = {(number - 1, token): number for number, token in enumerate(prefix)}
        token_ids = packed.token_ids.tolist()
        numbers = [*range(len(prefix)), *[-1] * len(token_ids)]
        for path in packed.token_index:
            before = len(prefix) - 1
            for place in path:
                key = before, token_ids[place]
                before = numbers[len(prefix) + place] = trie.setdefault(key, len(trie))
        return self._trie_states(prefix, list(trie))[numbers]

    def _trie_states(self, prefix: TokenIds, trie: Trie) -> Tensor:
        """[n, H] what comes out for the tokens of a trie; the first of them are those of the prefix."""
        root = self._root()
        nodes = self._tree.find(trie, root)
        new = np.flatnonzero(nodes == MISSING)
        if not len(new):
            return self._tree.states(nodes)
        states = self._run(prefix, trie, new.tolist(), root)
        out = states.new_empty(len(nodes), states.shape[1])
        out[torch.from_numpy(new)] = states
        if len(new) < len(nodes):
            old = np.flatnonzero(nodes != MISSING)
            out[torch.from_numpy(old)] = self._tree.states(nodes[old])
        self._tree.add(trie, root, new, states)
        return out

    @contextmanager
    def skipped(self, states: Tensor) -> Iterator[None]:
        """Context manager in which the model takes these [n, H] for what comes out of the frozen blocks."""
        with self._replaced(range(self._count), lambda _: states[None]):
            yield

    def _run(self, prefix: TokenIds, trie: Trie, new: Sequence[int], root: Hashable) -> Tensor:
        """[m, H] what comes out for m tokens of a trie."""
        known_ids, known_root, known_kv = self._prefix
        known = common_prefix_length((known_ids, prefix)) if root == known_root else 0
        known = min(known, *new)
        wanted: set[int] = set()  # the new ones, and those before them whose keys and values are not known
        for token in new:
            while token >= known and token not in wanted:
                wanted.add(token)
                token, _ = trie[token]
        numbers = {token: number for number, token in enumerate(sorted(wanted))}
        multiple = CPU_TOKENS if self._device.type == "cpu" else ACCELERATOR_TOKENS
        filling = -len(wanted) % multiple
        layout = PositionLayout(
            [*(numbers.get(trie[token][0], -1) for token in numbers), *[-1] * filling],
            known,
            {module: (k[:known], v[:known]) for module, (k, v) in known_kv.items()},
            self._device,
            score_limit(self._device, self._body.config.get_text_config()),
        )
        token_ids = [*(trie[token][1] for token in numbers), *[trie[known][1]] * filling]
        hidden = self._hidden([token_ids[number] for number in layout.order], layout)
        self.tokens_computed += len(token_ids)
        rank = {number: place for place, number in enumerate(layout.order)}
        behind = range(known, len(prefix))
        if known < len(prefix) // 2 and wanted.issuperset(behind):
            index = [*range(known), *(known + rank[numbers[token]] for token in behind)]
            kv = {module: (k[index], v[index]) for module, (k, v) in layout.recorded.items()}
            self._prefix = prefix, root, kv
        return hidden[[rank[numbers[token]] for token in new]]

    def _hidden(self, token_ids: Sequence[int], layout: PositionLayout) -> Tensor:
        taken: list[Tensor] = []

        def take(hidden: Tensor) -> Tensor:
            taken.append(hidden)
            return hidden

        above = range(self._count, len(self._blocks))
        with self._replaced(above, take):
            self._body(
                input_ids=torch.tensor([token_ids], device=self._device),
                position_ids=torch.tensor([layout.positions], device=self._device),
                attention_mask=torch.zeros((1, 1, 1, 1), device=self._device),  # or transformers makes one
                use_cache=False,
                layout=layout,
            )
        return taken[0][0]

    @property
    def _device(self) -> torch.device:
        device: torch.device = self._body.get_input_embeddings().weight.device
        return device

    def _root(self) -> Hashable:
        """Whatever else the states depend on: device and precision."""
        kind = self._device.type
        return self._device, torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)

    @contextmanager
    def _replaced(self, numbers: range, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Context manager in which blocks apply a function to their input and do nothing else."""

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            return function(args[0] if args else kwargs["hidden_states"])

        for number in numbers:
            self._blocks[number].forward = forward
        try:
            yield
        finally:
            for number in numbers:
                del self._blocks[number].forward
