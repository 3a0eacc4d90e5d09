"""What kept sequences go on by in several ways at once, such as the candidates of a question, without keeping it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.kv_cache import KVCache, Step
from lgym.models.prefix_sharing.packing import TokenIds


def build_token_trie(ends: Sequence[TokenIds]) -> dict[TokenIds, int]:
    """The distinct beginnings of one token or more, numbered so that each comes after its own beginnings."""
    return {path: n for n, path in enumerate(dict.fromkeys(end[:t] for end in ends for t in range(1, len(end) + 1)))}


def run_branches(
    llm: ValueHeadLLM, kv_cache: KVCache, hidden: Tensor, ends: Sequence[Sequence[TokenIds]]
) -> tuple[Tensor, list[list[list[int]]]]:
    """Hidden states where each row of a kv_cache goes on by each of its ends; what ends have in common is run once.

    The kv_cache stays as it is, but that the room behind its rows is written to: it needs as many places as the row with the
    most has `build_token_trie`.

    Args:
        llm: the model, whose layout is `tree`.
        kv_cache: S rows.
        hidden: [S, H] hidden states at the ends of the rows.
        ends: for each row what it goes on by, each zero or more tokens.

    Returns:
        [K, H] hidden states, and for each row and each of its ends the rows of them from the kv_cache's last token on.
    """
    tries = [build_token_trie(own) for own in ends]
    rows = [row for row, trie in enumerate(tries) if trie]
    first = [0] * len(tries)
    count = len(hidden)
    for row in rows:
        first[row], count = count, count + len(tries[row])
    if rows:
        hidden = torch.cat([hidden, _run(llm, kv_cache, rows, [tries[row] for row in rows])])
    return hidden, [
        [[row, *(first[row] + tries[row][end[:t]] for t in range(1, len(end) + 1))] for end in own]
        for row, own in enumerate(ends)
    ]


def _run(llm: ValueHeadLLM, kv_cache: KVCache, rows: Sequence[int], tries: Sequence[dict[TokenIds, int]]) -> Tensor:
    """[n, H] hidden states of the last tokens of all beginnings, row by row."""
    device = kv_cache.lengths.device
    most = max(map(len, tries))
    sees = torch.zeros(len(rows), most, most, dtype=torch.bool)  # [R, M, M]: a token sees those before it on its path
    for own, trie in zip(sees, tries, strict=True):
        for path, number in trie.items():
            if len(path) > 1:
                own[number] = own[trie[path[:-1]]]
            own[number, number] = True
    index = torch.tensor(rows, device=device)
    lengths = kv_cache.lengths[index]
    width = kv_cache.width + most
    places = lengths[:, None] + torch.arange(most, device=device)  # [R, M]
    seen = (torch.arange(width, device=device) < lengths[:, None])[:, None].repeat(1, most, 1)  # [R, M, width]
    seen.scatter_(2, places[:, None].expand(-1, most, -1), sees.to(device))
    real = torch.tensor([[n < len(trie) for n in range(most)] for trie in tries], device=device)
    owners = index.repeat_interleave(real.sum(1))
    step = Step(kv_cache, index, width, owners, places[real], real.flatten().nonzero().squeeze(1), ~seen[:, None])
    tokens = torch.tensor([path[-1] for trie in tries for path in trie], device=device)
    depths = torch.tensor([len(path) - 1 for trie in tries for path in trie], device=device)
    return llm.run_next(tokens, kv_cache.lengths[owners] + depths + len(kv_cache.prefix_ids), step)
