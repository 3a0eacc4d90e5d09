"""Limits of a model: its context length, and the memory that tokens take."""

from __future__ import annotations

from typing import Any

import torch


def context_length(config: Any) -> int:
    """The longest sequence that a model of this (text) configuration takes, in tokens."""
    limits = [getattr(config, "max_position_embeddings", None)]
    if getattr(config, "use_sliding_window", True):  # packed rows attend without a window
        limits.append(getattr(config, "sliding_window", None))
    return min((int(limit) for limit in limits if limit), default=1 << 30)


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Memory of a token's keys and values in all layers; 0 for a model without attention."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return 0
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * kv_heads * size * dtype.itemsize


def tokens_per_forward(device: torch.device) -> int:
    """Token budget of a forward pass without gradient; a CPU's caches hold the activations of no more."""
    return 1024 if device.type == "cpu" else 16_384
