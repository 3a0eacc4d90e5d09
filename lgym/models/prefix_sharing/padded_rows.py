"""Padded forward passes, for models whose attention cannot be replaced by tree attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lgym.models.prefix_sharing.packing import PackedRows


def run_behind_prefix(body: Any, packed: PackedRows, prefix_length: int, cache: Any) -> Tensor:
    """Runs packed rows as a padded batch, each behind a copy of the common prefix's keys and values.

    Args:
        body: a transformers model without its head.
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
    shape = rows, 1, length, prefix_length + length
    attn_bias = torch.zeros(shape, dtype=embedding.dtype, device=embedding.device)
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
