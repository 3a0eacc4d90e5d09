"""Prefill: prompts are run into a KV cache, but for what earlier caches hold of them.

A prompt that begins with the tokens of a cached row, as each turn of a growing conversation does, costs only
its new tokens. This is prefix caching as in vLLM and in SGLang's RadixAttention (Zheng et al. 2023,
arXiv:2312.07104, section 3), for whole cached rows.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.kv_cache import KVCache, concat_kv_caches, map_kv
from lgym.models.prefix_sharing.packing import TokenIds, split_micro_batches, tokens_per_forward
from lgym.models.prefix_sharing.tree_attention import KVStates


def prefill(
    llm: ValueHeadLLM,
    prompts: Sequence[TokenIds],
    kv_caches: Sequence[KVCache],
    *,
    free_slots: int,
    row_length: int,
) -> tuple[KVCache, Tensor]:
    """Runs prompts, but for what KV caches hold of them.

    Args:
        llm: a model whose layout is `tree`.
        prompts: S prompts of at least one token.
        kv_caches: caches that the prompts may continue.
        free_slots: slots to keep free behind the longest prompt.
        row_length: tokens of a packed row while new prompts are run.

    Returns:
        The KV cache of the S prompts, and [S, H] hidden states at their last tokens.
    """
    matches = _match_prefixes(prompts, kv_caches)
    runs: list[tuple[list[int], KVCache, Tensor]] = []  # of some prompts each
    for number, kv_cache in enumerate(kv_caches):
        continued = [i for i, (cache, _, _) in enumerate(matches) if cache == number]
        if continued:
            new_ids = [prompts[i][matches[i][2] :] for i in continued]
            part = kv_cache.select([matches[i][1] for i in continued], free_slots + max(map(len, new_ids)))
            states = part.extend(llm, new_ids)
            runs.append((continued, part, states[[end - 1 for end in accumulate(map(len, new_ids))]]))
    new = [i for i, (_, _, length) in enumerate(matches) if not length]
    for batch in split_micro_batches([prompts[i] for i in new], tokens_per_forward(llm.device)):
        indices = [new[n] for n in batch]
        runs.append((indices, *_prefill_new(llm, [prompts[i] for i in indices], free_slots, row_length)))
    order = [i for indices, _, _ in runs for i in indices]
    joined = concat_kv_caches([part for _, part, _ in runs])
    hidden = torch.cat([states for _, _, states in runs])
    if order == sorted(order):
        return joined, hidden
    runs.clear()  # the copies are in `joined`, and `select` copies once more
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return joined.select(inverse, free_slots), hidden[inverse]


def _match_prefixes(prompts: Sequence[TokenIds], kv_caches: Sequence[KVCache]) -> list[tuple[int, int, int]]:
    """Cache, row and length of each prompt's longest cached prefix, which leaves at least its last token."""
    rows = {(): (-1, -1)} | {
        cache.prefix_ids + suffix: (number, row)
        for number, cache in enumerate(kv_caches)
        for row, suffix in enumerate(cache.suffix_ids)
    }
    lengths = sorted({len(ids) for ids in rows}, reverse=True)
    matched = [next(n for n in lengths if n < len(prompt) and prompt[:n] in rows) for prompt in prompts]
    return [(*rows[prompt[:n]], n) for prompt, n in zip(prompts, matched, strict=True)]


def cached_prefix_lengths(prompts: Sequence[TokenIds], kv_caches: Sequence[KVCache]) -> list[int]:
    """Leading tokens of each prompt that `prefill` takes from a cache."""
    return [length for _, _, length in _match_prefixes(prompts, kv_caches)]


def evict_unused(kv_caches: Sequence[KVCache], used: Collection[TokenIds]) -> list[KVCache]:
    """The caches without the rows whose tokens, prefix included, are not in use."""
    kept = []
    for kv_cache in kv_caches:
        rows = [r for r, suffix in enumerate(kv_cache.suffix_ids) if kv_cache.prefix_ids + suffix in used]
        if rows:
            kept.append(kv_cache if len(rows) == kv_cache.num_rows else kv_cache.select(rows, 0))
    return kept


def _prefill_new(
    llm: ValueHeadLLM, prompts: Sequence[TokenIds], free_slots: int, row_length: int
) -> tuple[KVCache, Tensor]:
    prefix, packed = llm.pack_sequences(prompts, list(map(len, prompts)), row_length=row_length)
    recorded: KVStates = {}
    hidden = llm.run_tree(prefix, packed, recorded)
    padded = pad_sequence([torch.tensor(index) for index in packed.token_index], batch_first=True)
    token_index = padded.to(llm.device) + len(prefix)  # [S, longest suffix]
    kv_cache = KVCache(
        prefix,
        [prompt[len(prefix) :] for prompt in prompts],
        map_kv(lambda states: states[: len(prefix)].transpose(0, 1).contiguous(), recorded),
        map_kv(lambda states: pad(states[token_index].transpose(1, 2), (0, 0, 0, free_slots)), recorded),
    )
    return kv_cache, hidden[[index[-1] for index in packed.token_index]]
