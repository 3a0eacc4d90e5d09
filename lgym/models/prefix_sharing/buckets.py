"""Buckets: packed rows of like length, padded to one shape, whose attention is computed together.

    queries  [kv_heads, R, L, group, d]        keys and values  [kv_heads, R, S, d],  S >= P + row prefix + L

Each row has the keys of the common prefix first, then those of its row prefix, then its own. Bucketing by
length keeps padding low; the number of query-key pairs bounds the memory. A cell of a padded array is a
*slot*.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from lgym.models.prefix_sharing.packing import PackedRows

KEY_MULTIPLE = 32  # a CPU's softmax takes twice as long over any other number of keys

# Query-key pairs of a bucket, which bound the memory of its attention: of the scores of every head, or of the
# one mask of all heads where a fused kernel stores no scores.
MAX_SCORES_STORED = 1 << 21
MAX_SCORES_FUSED = 1 << 26

# Rows of up to twice this length, and row prefixes of up to this, share a bucket however they differ.
SHORT_ROW = 64


@dataclass(frozen=True, eq=False)
class RowBucket:
    """R packed rows with n tokens, behind a common prefix of P, in a layer with K tokens."""

    prefix_length: int  # P
    attn_mask: Tensor  # [R, 1, L, S] bool, True where a query attends to a key
    query_tokens: Tensor  # [R * L] int64, the token of each query slot, from 0; any token for padding
    query_slots: Tensor  # [n] int64, the query slot of each token
    key_tokens: Tensor  # [R * S] int64, the token of each key slot, of K; any token where the slot is masked
    key_slots: Tensor  # [n] int64, the key slot of each token
    layer_tokens: slice  # the n tokens among the K
    row_prefix_tokens: Tensor  # [m] int64, of the longest row prefix if the others are its parts, else of all
    row_prefix_slots: Tensor | None  # [m] int64; None if all row prefixes lie alike behind the common prefix
    _attn_bias: dict[Any, Tensor] = field(default_factory=dict)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        """[n, kv_heads, group, d] queries over the layer's [K, kv_heads, d] to [kv_heads, n, group, d]."""
        queries = _ScatterQueries.apply(q, self)
        keys, values = (_ScatterKeys.apply(states, self) for states in (k, v))
        layout = bias_layout(queries, softcap)
        if layout not in self._attn_bias:  # the same in every layer
            self._attn_bias[layout] = make_attn_bias(self.attn_mask, *layout)
        out = attend_rows(queries, keys, values, self._attn_bias[layout], scale, softcap)
        return _Gather.apply(out.flatten(1, 2), self.query_slots)


def is_fused(device: torch.device, softcap: float | None) -> bool:
    """True where attention is a fused kernel: not on a CPU, whose own is slow in such short rows, most of all
    backward; not on MPS, which stores the scores where there is a gradient; and not with a soft cap, which it
    does not have."""
    return device.type not in ("cpu", "mps") and softcap is None


def score_limit(device: torch.device, config: Any) -> int:
    """The most query-key pairs of a bucket, for a model with this configuration."""
    fused = is_fused(device, getattr(config, "attn_logit_softcapping", None))
    return MAX_SCORES_FUSED if fused else MAX_SCORES_STORED


def bucket_rows(
    packed: PackedRows, prefix_length: int, device: torch.device, max_scores: int
) -> list[RowBucket]:
    """All rows in order, in buckets of at most `max_scores` query-key pairs, or of one row."""
    return [
        _make_bucket(packed, rows, prefix_length, device)
        for rows in _row_ranges(packed, prefix_length, max_scores)
    ]


def _row_ranges(packed: PackedRows, prefix_length: int, max_scores: int) -> Iterator[range]:
    start, length, row_prefix = 0, packed.lengths[0], packed.row_prefixes[0]
    for row in range(1, len(packed.lengths)):
        row_length, other_prefix = packed.lengths[row], packed.row_prefixes[row]
        max_length, longest_prefix = max(length, row_length), max(row_prefix, other_prefix, key=len)
        scores = (row + 1 - start) * max_length * (prefix_length + len(longest_prefix) + max_length)
        alike = 2 * min(length, row_length) >= max_length or max_length <= 2 * SHORT_ROW
        if not (alike and _compatible(row_prefix, other_prefix) and scores <= max_scores):
            yield range(start, row)
            start, max_length, longest_prefix = row, row_length, other_prefix
        length, row_prefix = max_length, longest_prefix
    yield range(start, len(packed.lengths))


def _compatible(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    # both empty, both short, or one a part of the other
    short, long = sorted((one, other), key=len)
    return bool(short) == bool(long) and (len(long) <= SHORT_ROW or long[: len(short)] == short)


def _make_bucket(packed: PackedRows, rows: range, prefix: int, device: torch.device) -> RowBucket:
    first = sum(packed.lengths[: rows.start])
    lengths = packed.lengths[rows.start : rows.stop]
    row_prefixes = packed.row_prefixes[rows.start : rows.stop]
    num_tokens, length, longest = sum(lengths), max(lengths), max(row_prefixes, key=len)
    row_start = prefix + len(longest)
    num_keys = -(-(row_start + length) // KEY_MULTIPLE) * KEY_MULTIPLE
    real = _leading(lengths, length)  # [R, L]
    own_keys, prefix_keys = np.zeros((2, len(rows), num_keys), bool)
    own_keys[:, row_start : row_start + length] = real
    prefix_keys[:, prefix:row_start] = _leading(list(map(len, row_prefixes)), len(longest))
    key_tokens = np.zeros(own_keys.shape, np.int64)
    key_tokens[:, :prefix] = range(prefix)
    key_tokens[prefix_keys] = prefix + np.array(list(chain.from_iterable(row_prefixes)), np.int64)
    key_tokens[own_keys] = range(prefix + first, prefix + first + num_tokens)
    attn_mask = np.zeros((len(rows), length, num_keys), bool)
    attn_mask[..., :prefix] = True
    row_prefix_lengths = packed.row_prefix_lengths[first : first + num_tokens].tolist()
    attn_mask[:, :, prefix:row_start][real] = _leading(row_prefix_lengths, len(longest))
    attn_mask[:, range(length), range(row_start, row_start + length)] = True  # padding attends to itself
    for row_mask, own in zip(attn_mask, packed.attn_masks[rows.start : rows.stop], strict=True):
        row_mask[: len(own), row_start : row_start + len(own)] = own
    nested = all(longest[: len(row_prefix)] == row_prefix for row_prefix in row_prefixes)

    def to_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return RowBucket(
        prefix_length=prefix,
        attn_mask=to_device(attn_mask[:, None]),
        query_tokens=to_device(real.cumsum() - 1),
        query_slots=to_device(np.flatnonzero(real)),
        key_tokens=to_device(key_tokens.reshape(-1)),
        key_slots=to_device(np.flatnonzero(own_keys)),
        layer_tokens=slice(prefix + first, prefix + first + num_tokens),
        row_prefix_tokens=to_device(
            prefix + np.array(longest, np.int64) if nested else key_tokens[prefix_keys]
        ),
        row_prefix_slots=None if nested else to_device(np.flatnonzero(prefix_keys)),
    )


def _leading(counts: Sequence[int], width: int) -> np.ndarray:
    """[len(counts), width] bool, True in so many leading columns of each row."""
    return np.arange(width) < np.array(counts)[:, None]


def attend_rows(
    q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """Attention of queries [kv_heads, R, L, group, d] over keys and values [kv_heads, R, S, d].

    Args:
        q: queries.
        k: keys.
        v: values.
        attn_bias: mask of the keys, as `make_attn_bias` gives it in the `bias_layout` of the queries.
        scale: factor of the scores.
        softcap: bound of the scores, or None.

    Returns:
        [kv_heads, R, L, group, d].
    """
    if is_fused(q.device, softcap):
        return _attend_fused(q, k, v, attn_bias, scale)
    return _attend_eager(q, k, v, attn_bias, scale, softcap)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor, scale: float) -> Tensor:
    # A group is more queries of one head: kernels for groups (`enable_gqa`) take no mask on CUDA, where torch
    # would store the scores instead.
    rows = q.flatten(2, 3).transpose(0, 1)  # [R, kv_heads, L * group, d]
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    out = scaled_dot_product_attention(rows, k, v, attn_mask=attn_bias[:, None], scale=scale)
    return out.transpose(0, 1).unflatten(2, q.shape[2:4])


def _attend_eager(
    q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor, scale: float, softcap: float | None
) -> Tensor:
    rows, k, v = q.flatten(2, 3).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if softcap is None:
        scores = torch.baddbmm(attn_bias, rows, k.transpose(1, 2), alpha=scale)
    else:
        scores = attn_bias + torch.tanh(rows @ k.transpose(1, 2) * (scale / softcap)) * softcap
    return (torch.softmax(scores, dim=-1) @ v).view(q.shape)  # the softmax sums in at least fp32


def bias_layout(q: Tensor, softcap: float | None) -> tuple[int, int, torch.dtype]:
    """Copies, group and precision of the bias for queries [kv_heads, R, L, group, d]; a fused kernel takes
    one."""
    return 1 if is_fused(q.device, softcap) else q.shape[0], q.shape[3], q.dtype


def make_attn_bias(attn_mask: Tensor, copies: int, group: int, dtype: torch.dtype) -> Tensor:
    """Additive [copies * R, L * group, S] of a bool [R, 1, L, S]: 0, or the least number."""
    attn_bias = torch.zeros_like(attn_mask, dtype=dtype).masked_fill_(~attn_mask, torch.finfo(dtype).min)
    return attn_bias.squeeze(1).repeat_interleave(group, dim=1).repeat(copies, 1, 1)


class _ScatterQueries(torch.autograd.Function):
    """Tokens [n, kv_heads, ...] to slots [kv_heads, R, L, ...]. Padding holds any token, without gradient."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, bucket: RowBucket) -> Tensor:
        ctx.slots = bucket.query_slots
        num_rows = len(bucket.attn_mask)
        return states.transpose(0, 1).index_select(1, bucket.query_tokens).unflatten(1, (num_rows, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.flatten(1, 2).index_select(1, ctx.slots).transpose(0, 1), None


class _ScatterKeys(torch.autograd.Function):
    """A layer's keys or values [K, kv_heads, d] to slots [kv_heads, R, S, d]; masked ones have gradient 0."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, bucket: RowBucket) -> Tensor:
        ctx.bucket = bucket
        ctx.num_states = len(states)
        num_rows = len(bucket.attn_mask)
        return states.transpose(0, 1).index_select(1, bucket.key_tokens).unflatten(1, (num_rows, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        bucket: RowBucket = ctx.bucket
        prefix, tokens = bucket.prefix_length, bucket.row_prefix_tokens
        total = grad.new_zeros(grad.shape[0], ctx.num_states, grad.shape[-1])
        total[:, :prefix] = grad[:, :, :prefix].sum(1)
        total[:, bucket.layer_tokens] = grad.flatten(1, 2).index_select(1, bucket.key_slots)
        if bucket.row_prefix_slots is not None:
            total.index_add_(1, tokens, grad.flatten(1, 2).index_select(1, bucket.row_prefix_slots))
        elif len(tokens):
            total.index_add_(1, tokens, grad[:, :, prefix : prefix + len(tokens)].sum(1))
        return total.transpose(0, 1), None


class _Gather(torch.autograd.Function):
    """Tokens [kv_heads, n, ...] from slots [kv_heads, R * L, ...]; the gradient of padding is 0."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, slots: Tensor) -> Tensor:
        ctx.slots = slots
        ctx.shape = states.shape
        return states.index_select(1, slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.new_zeros(ctx.shape).index_copy_(1, ctx.slots, grad), None
