"""Tiles: packed rows of like size, whose attention is computed together.

    queries  [kv_heads, R, L, group, d]        keys and values  [kv_heads, R, S, d],  S >= P + trunk + L

Every row is laid out behind the prefix that all rows have and its trunk, the tokens of other rows that it goes on from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from lgym.models.prefix_sharing.packing import PackedRows

KEY_MULTIPLE = 32
"""Rows attend to a multiple of this many places: over any other number a CPU's softmax takes twice as long."""

SHORT = 64
"""Rows of up to twice this many places, and trunks of up to as many, share a tile whatever they are like."""


@dataclass(frozen=True)
class Keys:
    """Where the keys, and values, of a tile are among the K of the layer."""

    rows: int
    prefix: int  # P
    tokens: Tensor  # [R * S] int64, the token of each place; any at all where nothing is seen
    own: slice  # the tile's own tokens
    places: Tensor  # [n] int64, the place of each of them
    trunk_tokens: Tensor  # [m] int64: of the one trunk that all rows have a part of, else of each row's
    trunk_places: Tensor | None  # [m] int64 their places; None where all rows have the same trunk, right behind the prefix


@dataclass(frozen=True, eq=False)
class Tile:
    """R rows with n tokens."""

    count: int  # n
    tokens: Tensor  # [R * L] int64, the token of each place, from 0; any at all where there is none
    places: Tensor  # [n] int64, the place of each token
    keys: Keys
    attn_mask: Tensor  # [R, 1, L, S] bool
    _attn_bias: dict[Any, Tensor] = field(default_factory=dict)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float, softcap: float | None) -> Tensor:
        """[n, kv_heads, group, d] queries over [K, kv_heads, d] keys and values of the layer to [kv_heads, n, group, d]."""
        queries = _ScatterQueries.apply(q, self.tokens, self.places, self.keys.rows)
        keys, values = (_ScatterKeys.apply(states, self.keys) for states in (k, v))
        out = attend_rows(queries, keys, values, self.attn_mask, self.attn_bias(heads, k.shape[1], q.dtype), scale, softcap)
        return _Gather.apply(out.flatten(1, 2), self.places)

    def attn_bias(self, heads: int, kv_heads: int, dtype: torch.dtype) -> Tensor:
        """[kv_heads * R, L * (heads / kv_heads), S]: what is attn_bias to scores, 0 or the least number."""
        key = heads, kv_heads, dtype
        if key not in self._attn_bias:
            self._attn_bias[key] = make_attn_bias(self.attn_mask, heads, kv_heads, dtype)
        return self._attn_bias[key]


def tiles_of(packed: PackedRows, prefix_length: int, device: torch.device, most_seen: int) -> list[Tile]:
    """All rows, in their order, in tiles of at most `most_seen` pairs of a place and a key, or of one row."""
    tiles, first = [], 0
    for rows in _grouped(packed, prefix_length, most_seen):
        tiles.append(_tile(packed, rows, first, prefix_length, device))
        first += tiles[-1].count
    return tiles


def _grouped(packed: PackedRows, prefix_length: int, most_seen: int) -> Iterator[range]:
    """Runs of rows."""
    start, length, trunk = 0, packed.lengths[0], packed.row_prefixes[0]
    for row in range(1, len(packed.lengths)):
        own, own_trunk = packed.lengths[row], packed.row_prefixes[row]
        wider, longer = max(length, own), max(trunk, own_trunk, key=len)
        area = (row + 1 - start) * wider * (prefix_length + len(longer) + wider)
        alike = 2 * min(length, own) >= wider or wider <= 2 * SHORT
        if not (alike and _fit(trunk, own_trunk) and area <= most_seen):
            yield range(start, row)
            start, wider, longer = row, own, own_trunk
        length, trunk = wider, longer
    yield range(start, len(packed.lengths))


def _fit(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether rows with these trunks may share a tile: both without, both short, or one of them part of the other."""
    short, long = sorted((one, other), key=len)
    return bool(short) == bool(long) and (len(long) <= SHORT or long[: len(short)] == short)


def _tile(packed: PackedRows, rows: range, first: int, prefix: int, device: torch.device) -> Tile:
    """The tile of some rows, whose tokens are numbered from `first` on."""
    lengths, trunks = [packed.lengths[r] for r in rows], [packed.row_prefixes[r] for r in rows]
    count, length, longest = sum(lengths), max(lengths), max(trunks, key=len)
    behind = prefix + len(longest)
    width = -(-(behind + length) // KEY_MULTIPLE) * KEY_MULTIPLE
    tokens, key_tokens = np.zeros((len(rows), length), np.int64), np.zeros((len(rows), width), np.int64)
    attn_mask = np.zeros((len(rows), 1, length, width), bool)
    key_tokens[:, :prefix], attn_mask[..., :prefix] = range(prefix), True
    attn_mask[:, 0, range(length), range(behind, behind + length)] = True  # what holds no token attn_mask something all the same
    seen = packed.row_prefix_lengths[first : first + count].numpy()
    start = 0
    for r, (n, trunk) in enumerate(zip(lengths, trunks, strict=True)):
        tokens[r, :n] = range(start, start + n)
        key_tokens[r, prefix : prefix + len(trunk)] = np.array(trunk, np.int64) + prefix
        key_tokens[r, behind : behind + n] = range(prefix + first + start, prefix + first + start + n)
        attn_mask[r, 0, :n, prefix:behind] = np.arange(len(longest)) < seen[start : start + n, None]
        attn_mask[r, 0, :n, behind : behind + n] = packed.attn_masks[rows[r]]
        start += n
    row, place = (np.arange(length) < np.array(lengths)[:, None]).nonzero()
    one_trunk = all(longest[: len(trunk)] == trunk for trunk in trunks)
    trunk_row, trunk_place = (np.arange(len(longest)) < np.array([len(t) for t in trunks])[:, None]).nonzero()
    trunk_places = trunk_row * width + prefix + trunk_place

    def there(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    keys = Keys(
        rows=len(rows),
        prefix=prefix,
        tokens=there(key_tokens.reshape(-1)),
        own=slice(prefix + first, prefix + first + count),
        places=there(row * width + behind + place),
        trunk_tokens=there(np.array(longest, np.int64) + prefix if one_trunk else key_tokens.reshape(-1)[trunk_places]),
        trunk_places=None if one_trunk else there(trunk_places),
    )
    return Tile(count, there(tokens.reshape(-1)), there(row * length + place), keys, there(attn_mask))


def attend_rows(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, attn_bias: Tensor, scale: float, softcap: float | None) -> Tensor:
    """[kv_heads, R, L, group, d] queries over [kv_heads, R, S, d] keys and values."""
    if q.device.type == "cpu" or softcap is not None:
        return _attend_written_out(q, k, v, attn_bias, scale, softcap)
    return _attend_fused(q, k, v, attn_mask, scale)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, scale: float) -> Tensor:
    kv_heads, _, _, group, _ = q.shape
    q = q.permute(1, 0, 3, 2, 4).flatten(1, 2)  # [R, heads, L, d]
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    out = scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, scale=scale, enable_gqa=group > 1)
    return out.unflatten(1, (kv_heads, group)).permute(1, 0, 3, 2, 4)


def _attend_written_out(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor, scale: float, softcap: float | None) -> Tensor:
    """For the CPU, whose fused kernel is slow in such short rows, most of all backward."""
    rows, k, v = q.flatten(2, 3).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if softcap is None:
        scores = torch.baddbmm(attn_bias, rows, k.transpose(1, 2), alpha=scale)
    else:
        scores = attn_bias + torch.tanh(rows @ k.transpose(1, 2) * (scale / softcap)) * softcap
    return (torch.softmax(scores, dim=-1) @ v).view(q.shape)  # the softmax's sums are at least fp32 within


def make_attn_bias(attn_mask: Tensor, heads: int, kv_heads: int, dtype: torch.dtype) -> Tensor:
    """[R, 1, L, S] bool to [kv_heads * R, L * (heads / kv_heads), S]: 0 where something is seen, else the least number."""
    attn_bias = torch.zeros(attn_mask.shape, dtype=dtype, device=attn_mask.device).masked_fill_(~attn_mask, torch.finfo(dtype).min)
    return attn_bias.squeeze(1).repeat_interleave(heads // kv_heads, dim=1).repeat(kv_heads, 1, 1)


class _ScatterQueries(torch.autograd.Function):
    """Tokens [n, kv_heads, ...] to places [kv_heads, R, L, ...]. Places without a token hold any, and take no part in the
    gradient."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, tokens: Tensor, places: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(places)
        return states.transpose(0, 1).index_select(1, tokens).unflatten(1, (rows, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grad.flatten(1, 2).index_select(1, places).transpose(0, 1), None, None, None


class _ScatterKeys(torch.autograd.Function):
    """The keys or values [K, kv_heads, d] of a layer to the places [kv_heads, R, S, d] of a tile. What nothing attn_mask has a
    gradient of 0."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, keys: Keys) -> Tensor:
        ctx.keys, ctx.count = keys, len(states)
        return states.transpose(0, 1).index_select(1, keys.tokens).unflatten(1, (keys.rows, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        keys: Keys = ctx.keys
        total = grad.new_zeros(grad.shape[0], ctx.count, grad.shape[-1])
        total[:, : keys.prefix] = grad[:, :, : keys.prefix].sum(1)
        total[:, keys.own] = grad.flatten(1, 2).index_select(1, keys.places)
        if len(keys.trunk_tokens):
            if keys.trunk_places is None:
                of_trunk = grad[:, :, keys.prefix : keys.prefix + len(keys.trunk_tokens)].sum(1)
            else:
                of_trunk = grad.flatten(1, 2).index_select(1, keys.trunk_places)
            total.index_add_(1, keys.trunk_tokens, of_trunk)
        return total.transpose(0, 1), None


class _Gather(torch.autograd.Function):
    """Tokens [kv_heads, n, ...] from their places [kv_heads, R * L, ...]; the gradient of places without a token is 0."""

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
