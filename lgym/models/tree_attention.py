"""Attention for all tokens of a batch in one row: those of the common prefix, then those of every packed row, unpadded.

Linear layers and norms see the row as it is, without padding and with the prefix among the rest. Only attention lays the
tokens out again as rows, each behind the prefix's keys and values:

    query  [1, heads, P + N, d]  ->  P tokens, causal  |  R rows of L places over [P + L] keys

It is registered with transformers under a name of its own, so that a model calls it in place of its own attention, and steps
aside for every call that brings no layout.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lgym.models.packing import PackedRows

PREFIX = "lgym_tree_over_"

KEYS = 32
"""Rows attend to a multiple of this many places: over any other number a CPU's softmax takes twice as long."""


class Layout(Protocol):
    """How the tokens of one row attend to each other, and to what was computed before."""

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        """[Q, heads, d] queries, [K, kv_heads, d] keys and values of a layer's attention module to [Q, heads, d]."""
        ...


@dataclass(frozen=True)
class Tree(Layout):
    """Where the N tokens behind a prefix of P lie in R rows of L places, and what each sees of S >= P + L."""

    prefix_length: int
    tokens: Tensor  # [R * L] int64, the token of each place; any at all where there is none
    places: Tensor  # [N] int64, the place of each token
    key_tokens: Tensor  # [R * S] int64, the same of what a row attends to, counted with the prefix
    key_places: Tensor  # [N] int64
    sees: Tensor  # [R, 1, L, S] bool
    _added: dict[Any, Tensor] = field(default_factory=dict)

    @staticmethod
    def over(packed: PackedRows, prefix_length: int, device: torch.device) -> Tree:
        rows, length = packed.token_ids.shape
        filled = packed.filled.flatten()
        tokens, places = filled.cumsum(0) - 1, filled.nonzero().squeeze(1)
        seen = prefix_length + length
        unseen = -seen % KEYS
        sees = torch.zeros(rows, 1, length, seen + unseen, dtype=torch.bool)
        sees[..., :prefix_length] = True
        sees[:, 0, :, prefix_length:seen] = packed.attends
        prefix = torch.arange(prefix_length).expand(rows, -1)
        keys = torch.cat([prefix, prefix_length + tokens.view(rows, -1), tokens.new_zeros(rows, unseen)], dim=1)
        return Tree(
            prefix_length=prefix_length,
            tokens=tokens.to(device),
            places=places.to(device),
            key_tokens=keys.flatten().to(device),
            key_places=(places // length * (seen + unseen) + prefix_length + places % length).to(device),
            sees=sees.to(device),
        )

    @property
    def rows(self) -> int:
        return self.sees.shape[0]

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        """Keys and values are those of the prefix and of the N tokens; the queries are so too, or only the N, if the prefix
        was run before."""
        prefix, fresh = self.prefix_length, len(q) - len(self.places)
        heads, kv_heads = q.shape[1], k.shape[1]
        q = q.unflatten(1, (kv_heads, -1))  # [P + N or N, kv_heads, group, d]
        queries = _Spread.apply(q[fresh:], self.tokens, self.places, 0, self.rows)
        keys, values = (_Spread.apply(s, self.key_tokens, self.key_places, prefix, self.rows) for s in (k, v))
        out = _attend(queries, keys, values, self.sees, self.added(heads, kv_heads, q.dtype), scale, softcap)
        out = _Collect.apply(out.flatten(1, 2), self.places)
        if fresh:
            seen = torch.ones(1, 1, prefix, prefix, dtype=torch.bool, device=q.device).tril()
            added = _added(seen, heads, kv_heads, q.dtype)
            q, k, v = (states[:prefix].transpose(0, 1).unsqueeze(1) for states in (q, k, v))
            out = torch.cat([_attend(q, k, v, seen, added, scale, softcap).squeeze(1), out], dim=1)
        return out.transpose(0, 1).flatten(1, 2)

    def added(self, heads: int, kv_heads: int, dtype: torch.dtype) -> Tensor:
        """[kv_heads * R, L * (heads / kv_heads), S]: what is added to scores, 0 or the least number."""
        key = heads, kv_heads, dtype
        if key not in self._added:
            self._added[key] = _added(self.sees, heads, kv_heads, dtype)
        return self._added[key]


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
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))  # [Q or P + N, heads, d]
    return layout.attend(module, q, k, v, scale, softcap)[None], None


def _attend(q: Tensor, k: Tensor, v: Tensor, sees: Tensor, added: Tensor, scale: float, softcap: float | None) -> Tensor:
    """[kv_heads, R, L, group, d] queries over [kv_heads, R, S, d] keys and values."""
    if q.device.type == "cpu" or softcap is not None:
        return _attend_written_out(q, k, v, added, scale, softcap)
    return _attend_fused(q, k, v, sees, scale)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, sees: Tensor, scale: float) -> Tensor:
    kv_heads, _, _, group, _ = q.shape
    q = q.permute(1, 0, 3, 2, 4).flatten(1, 2)  # [R, heads, L, d]
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    out = scaled_dot_product_attention(q, k, v, attn_mask=sees, scale=scale, enable_gqa=group > 1)
    return out.unflatten(1, (kv_heads, group)).permute(1, 0, 3, 2, 4)


def _attend_written_out(q: Tensor, k: Tensor, v: Tensor, added: Tensor, scale: float, softcap: float | None) -> Tensor:
    """For the CPU, whose fused kernel is slow in such short rows, most of all backward."""
    rows, k, v = q.flatten(2, 3).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if softcap is None:
        scores = torch.baddbmm(added, rows, k.transpose(1, 2), alpha=scale)
    else:
        scores = added + torch.tanh(rows @ k.transpose(1, 2) * (scale / softcap)) * softcap
    return (torch.softmax(scores, dim=-1) @ v).view(q.shape)  # the softmax's sums are at least fp32 within


def _added(sees: Tensor, heads: int, kv_heads: int, dtype: torch.dtype) -> Tensor:
    added = torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)
    return added.squeeze(1).repeat_interleave(heads // kv_heads, dim=1).repeat(kv_heads, 1, 1)


class _Spread(torch.autograd.Function):
    """Tokens [T, kv_heads, ...] to places [kv_heads, R, places of a row, ...], of which the first of every row may be those
    of a prefix. Places without a token hold any, and take no part in the gradient."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, tokens: Tensor, places: Tensor, prefix: int, rows: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.prefix = prefix
        return states.transpose(0, 1).index_select(1, tokens).unflatten(1, (rows, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        own = grad.flatten(1, 2).index_select(1, places)
        if ctx.prefix:
            own = torch.cat([grad[:, :, : ctx.prefix].sum(1), own], dim=1)
        return own.transpose(0, 1), None, None, None, None


class _Collect(torch.autograd.Function):
    """Tokens [kv_heads, N, ...] from their places [kv_heads, R * L, ...]; the gradient of places without a token is 0."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape = states.shape
        return states.index_select(1, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).index_copy_(1, places, grad), None


def _own_attention(module: nn.Module) -> Any:
    """The attention function that the model had before."""
    config: Any = module.config
    own = config._attn_implementation.removeprefix(PREFIX)
    written_out: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(own, written_out)
