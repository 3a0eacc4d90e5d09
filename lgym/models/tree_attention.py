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
    sees: Tensor  # [R, 1, L, S] bool
    _added: dict[Any, Tensor] = field(default_factory=dict)

    @staticmethod
    def over(packed: PackedRows, prefix_length: int, device: torch.device) -> Tree:
        rows, length = packed.token_ids.shape
        filled = packed.filled.flatten()
        seen = prefix_length + length
        sees = torch.zeros(rows, 1, length, seen + -seen % KEYS, dtype=torch.bool)
        sees[..., :prefix_length] = True
        sees[:, 0, :, prefix_length:seen] = packed.attends
        return Tree(
            prefix_length=prefix_length,
            tokens=(filled.cumsum(0) - 1).to(device),
            places=filled.nonzero().squeeze(1).to(device),
            sees=sees.to(device),
        )

    @property
    def rows(self) -> int:
        return self.sees.shape[0]

    @property
    def unseen(self) -> int:
        """Places behind each row that nothing attends to."""
        return self.sees.shape[3] - self.prefix_length - self.sees.shape[2]

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        """Keys and values are those of the prefix and of the N tokens; the queries are so too, or only the N, if the prefix
        was run before."""
        prefix, fresh = self.prefix_length, len(q) - len(self.places)
        out = _collect(_rows(q[fresh:], k, v, self, scale, softcap), self)
        if not fresh:
            return out
        seen = torch.ones(1, 1, prefix, prefix, dtype=torch.bool, device=q.device).tril()
        added = _added(seen, q.shape[1], k.shape[1], q.dtype)
        return torch.cat([_attend(q[None, :fresh], k[None, :prefix], v[None, :prefix], seen, added, scale, softcap)[0], out])

    def added(self, heads: int, kv_heads: int, dtype: torch.dtype) -> Tensor:
        """[R * kv_heads, (heads / kv_heads) * L, S]: what is added to scores, 0 or the least number."""
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


def _rows(q: Tensor, k: Tensor, v: Tensor, tree: Tree, scale: float, softcap: float | None) -> Tensor:
    """[R, L, heads, d] of the packed rows behind the prefix."""

    def behind_prefix(states: Tensor) -> Tensor:
        own = _spread(states[tree.prefix_length :], tree)
        shared = states[: tree.prefix_length].expand(tree.rows, -1, -1, -1)
        unseen = own.new_zeros(()).expand(tree.rows, tree.unseen, *own.shape[2:])
        return torch.cat([shared, own, unseen], dim=1)

    added = tree.added(q.shape[1], k.shape[1], q.dtype)
    return _attend(_spread(q, tree), behind_prefix(k), behind_prefix(v), tree.sees, added, scale, softcap)


def _attend(q: Tensor, k: Tensor, v: Tensor, sees: Tensor, added: Tensor, scale: float, softcap: float | None) -> Tensor:
    """[R, L, heads, d] queries over [R, S, kv_heads, d] keys and values."""
    if q.device.type == "cpu" or softcap is not None:
        return _attend_written_out(q, k, v, added, scale, softcap)
    return _attend_fused(q, k, v, sees, scale)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, sees: Tensor, scale: float) -> Tensor:
    q, k, v = (states.transpose(1, 2) for states in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, attn_mask=sees, scale=scale, enable_gqa=grouped).transpose(1, 2)


def _attend_written_out(q: Tensor, k: Tensor, v: Tensor, added: Tensor, scale: float, softcap: float | None) -> Tensor:
    """For the CPU, whose fused kernel is slow in such short rows, most of all backward."""
    (rows, length, heads, _), (seen, kv_heads) = q.shape, k.shape[1:3]
    group = heads // kv_heads
    q = q.unflatten(2, (kv_heads, group)).permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, group * length, -1)
    k = k.permute(0, 2, 3, 1).reshape(rows * kv_heads, -1, seen)
    v = v.transpose(1, 2).reshape(rows * kv_heads, seen, -1)
    if softcap is None:
        scores = torch.baddbmm(added, q, k, alpha=scale)
    else:
        scores = added + torch.tanh(q @ k * (scale / softcap)) * softcap
    out = torch.softmax(scores, dim=-1) @ v  # the softmax's sums are at least fp32 within
    return out.view(rows, kv_heads, group, length, -1).permute(0, 3, 1, 2, 4).reshape(rows, length, heads, -1)


def _added(sees: Tensor, heads: int, kv_heads: int, dtype: torch.dtype) -> Tensor:
    rows, _, length, seen = sees.shape
    added = torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(~sees, torch.finfo(dtype).min)
    return added.unsqueeze(1).expand(-1, kv_heads, heads // kv_heads, -1, -1).reshape(rows * kv_heads, -1, seen)


def _spread(states: Tensor, tree: Tree) -> Tensor:
    """[N, heads, d] tokens to [R, L, heads, d] places."""
    return _Spread.apply(states, tree.tokens, tree.places).unflatten(0, (tree.rows, -1))


def _collect(states: Tensor, tree: Tree) -> Tensor:
    """[R, L, heads, d] places to [N, heads, d] tokens."""
    return _Collect.apply(states.flatten(0, 1), tree.places)


class _Spread(torch.autograd.Function):
    """A token to its place. Places without a token hold any, and take no part in the gradient."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, tokens: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        return states.index_select(0, tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places), None, None


class _Collect(torch.autograd.Function):
    """A token from its place; the gradient of places without a token is 0."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape = states.shape
        return states.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).index_copy_(0, places, grad), None


def _own_attention(module: nn.Module) -> Any:
    """The attention function that the model had before."""
    config: Any = module.config
    own = config._attn_implementation.removeprefix(PREFIX)
    written_out: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(own, written_out)
