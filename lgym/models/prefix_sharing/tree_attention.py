"""Attention for all tokens of a batch in one row: those of the common prefix, then those of every packed row, unpadded.

Linear layers and norms see the row as it is, without padding and with the prefix among the rest. Only attention lays the
tokens out again as rows, each behind the keys and values of the prefix and of its trunk:

    query  [1, heads, P + N, d]  ->  P tokens, causal  |  tiles of R rows of L places over [P + trunk + L] keys

It is registered with transformers under a name of its own, so that a model calls it in place of its own attention, and steps
aside for every call that brings no layout.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lgym.models.prefix_sharing.buckets import Tile, attend_rows, make_attn_bias, tiles_of
from lgym.models.prefix_sharing.packing import PackedRows

PREFIX = "lgym_tree_over_"

MOST_SEEN = 1 << 21
"""Pairs of a query and a key that a tile has on a CPU: bounds what attention holds at a time."""

MOST_SEEN_FUSED = 1 << 26
"""The same where a fused kernel does not write the pairs out."""


class Layout(Protocol):
    """How the tokens of one row attend to each other, and to what was computed before."""

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        """[Q, heads, d] queries, [K, kv_heads, d] keys and values of a layer's attention module to [Q, heads, d]."""
        ...


@dataclass(frozen=True)
class Tree(Layout):
    """Where the N tokens behind a prefix of P lie, and what each attn_mask."""

    prefix_length: int
    tiles: tuple[Tile, ...]

    @staticmethod
    def over(packed: PackedRows, prefix_length: int, device: torch.device) -> Tree:
        limit = MOST_SEEN if device.type == "cpu" else MOST_SEEN_FUSED
        return Tree(prefix_length, tuple(tiles_of(packed, prefix_length, device, limit)))

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        """Keys and values are those of the prefix and of the N tokens; the queries are so too, or only the N, if the prefix
        was run before."""
        prefix, fresh = self.prefix_length, len(q) - sum(tile.count for tile in self.tiles)
        heads, kv_heads = q.shape[1], k.shape[1]
        q = q.unflatten(1, (kv_heads, -1))  # [P + N or N, kv_heads, group, d]
        parts = [
            tile.attend(queries, k, v, heads, scale, softcap)
            for tile, queries in zip(self.tiles, q[fresh:].split([tile.count for tile in self.tiles]), strict=True)
        ]
        if fresh:
            seen = torch.ones(1, 1, prefix, prefix, dtype=torch.bool, device=q.device).tril()
            attn_bias = make_attn_bias(seen, heads, kv_heads, q.dtype)
            q, k, v = (states[:prefix].transpose(0, 1).unsqueeze(1) for states in (q, k, v))
            parts = [attend_rows(q, k, v, seen, attn_bias, scale, softcap).squeeze(1), *parts]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return out.transpose(0, 1).flatten(1, 2)


def use_tree_attention(causal_lm: Any) -> None:
    """Lets a model take trees; calls without one go to the attention that it had.

    Raises:
        ValueError: if the model's attention cannot be replaced.
    """
    own = causal_lm.config._attn_implementation
    if own.startswith(PREFIX):
        return
    name = PREFIX + own
    AttentionInterface.register(name, tree_attention)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[own])
    if not causal_lm._can_set_attn_implementation():
        raise ValueError(f"The attention of {type(causal_lm).__name__} cannot be replaced.")
    causal_lm.set_attn_implementation(name)


def restore_attention(causal_lm: Any) -> None:
    """Undoes `use_tree_attention`."""
    name = causal_lm.config._attn_implementation
    if name.startswith(PREFIX):
        causal_lm.set_attn_implementation(name.removeprefix(PREFIX))


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one row of tokens, as transformers' attention functions: [1, heads, Q, d] to [1, Q, heads, d].

    Raises:
        ValueError: if the model asks for what layouts do not have (attention sinks).
    """
    if layout is None:
        return _own_attention(module)(module, query, key, value, attention_mask, *args, **kwargs)
    if kwargs.get("s_aux") is not None:
        raise ValueError("Attention sinks are not supported in this layout.")
    scale, softcap = kwargs.get("scaling"), kwargs.get("softcap")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (_multiplied(states[0].transpose(0, 1)) for states in (query, key, value))  # [Q or P + N, heads, d]
    return layout.attend(module, q, k, v, scale, softcap)[None], None


def _multiplied(states: Tensor) -> Tensor:
    """The states in the precision that autocast multiplies in. Under it rotary positions leave queries and keys in fp32 and
    values in bf16; layouts keep them side by side, and in one precision they take half the memory."""
    kind = states.device.type
    return states.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else states


def _own_attention(module: nn.Module) -> Any:
    """The attention function that the model had before."""
    config: Any = module.config
    own = config._attn_implementation.removeprefix(PREFIX)
    written_out: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(own, written_out)
