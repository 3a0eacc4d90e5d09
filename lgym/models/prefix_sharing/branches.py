"""Several continuations of cached sequences at once, such as the candidates of a question.

The continuations of a row form a token trie, whose nodes are run together with a tree mask (Miao et al. 2023,
SpecInfer, arXiv:2305.09781, section 4.2; Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.1.2). The cache
does not keep them.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.kv_cache import DecodeStep, KVCache
from lgym.models.prefix_sharing.packing import TokenIds, ancestor_mask


def build_token_trie(continuations: Sequence[TokenIds]) -> dict[TokenIds, int]:
    """Node numbers of a token trie, by the tokens that lead to a node; a node comes after its parent."""
    prefixes = dict.fromkeys(ids[:t] for ids in continuations for t in range(1, len(ids) + 1))
    return {prefix: node for node, prefix in enumerate(prefixes)}


def run_branches(
    llm: ValueHeadLLM, kv_cache: KVCache, hidden: Tensor, continuations: Sequence[Sequence[TokenIds]]
) -> tuple[Tensor, list[list[list[int]]]]:
    """Runs all continuations of cached rows; what those of a row have in common is run once.

    The cached tokens stay as they are. The free slots behind them are written to: there must be as many as
    the largest `build_token_trie` has nodes.

    Args:
        llm: a model whose layout is `tree`.
        kv_cache: S rows.
        hidden: [S, H] hidden states at the last tokens of the rows.
        continuations: for each row, token ids that continue it, each zero or more.

    Returns:
        [K, H] hidden states, and for each row and each of its continuations their indices, from the row's
        last token on.
    """
    tries = [build_token_trie(row_continuations) for row_continuations in continuations]
    rows = [row for row, trie in enumerate(tries) if trie]
    first = list(accumulate(map(len, tries), initial=len(hidden)))
    if rows:
        hidden = torch.cat([hidden, _run_tries(llm, kv_cache, rows, [tries[row] for row in rows])])
    return hidden, [
        [[row, *(first[row] + trie[ids[:t]] for t in range(1, len(ids) + 1))] for ids in row_continuations]
        for row, (trie, row_continuations) in enumerate(zip(tries, continuations, strict=True))
    ]


def _run_tries(
    llm: ValueHeadLLM, kv_cache: KVCache, rows: Sequence[int], tries: Sequence[dict[TokenIds, int]]
) -> Tensor:
    most = max(map(len, tries))  # M
    tree_mask = torch.zeros(len(rows), most, most, dtype=torch.bool)  # True for a node and its ancestors
    for row_mask, trie in zip(tree_mask, tries, strict=True):
        ancestors = ancestor_mask([trie.get(prefix[:-1], -1) for prefix in trie])
        row_mask[: len(trie), : len(trie)] = torch.from_numpy(ancestors)
    row_lengths = kv_cache.lengths
    lengths = torch.tensor([row_lengths[row] for row in rows], device=llm.device)
    step = DecodeStep.from_cache(
        kv_cache,
        torch.tensor(rows, device=llm.device),
        lengths,
        counts=list(map(len, tries)),
        max_length=max(row_lengths) + most,
    )
    new_keys = (lengths[:, None] + torch.arange(most, device=llm.device))[:, None, None]  # [R, 1, 1, M]
    step.masked.scatter_(3, new_keys.expand(-1, -1, most, -1), ~tree_mask[:, None].to(llm.device))
    nodes = [(row, prefix) for row, trie in zip(rows, tries, strict=True) for prefix in trie]
    token_ids = torch.tensor([prefix[-1] for _, prefix in nodes], device=llm.device)
    positions = torch.tensor([row_lengths[row] + len(prefix) - 1 for row, prefix in nodes], device=llm.device)
    return llm.run_step(token_ids, positions + len(kv_cache.prefix_ids), step)
