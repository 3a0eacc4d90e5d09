"""Tree attention: one unpadded row with the tokens of the common prefix, then those of every packed row.

Linear layers and norms see this row as it is. Attention alone lays the tokens out as padded rows, each behind
the keys and values of the common prefix and of its row prefix:

    query  [1, heads, P + N, d]  ->  P tokens, causal  |  R rows of L queries over P + row prefix + L keys

(Attention along a token trie: SpecInfer, Miao et al. 2023, arXiv:2305.09781, section 4.2.) The function is
registered with transformers, so that a model calls it in place of its own attention. A call without a layout
goes to the latter.
"""

import sys
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lgym.models.prefix_sharing.buckets import RowBucket, attend_rows, bias_layout, make_attn_bias

NAME_PREFIX = "lgym_tree_over_"

KVStates = dict[nn.Module, tuple[Tensor, Tensor]]  # keys and values by attention layer


class AttentionLayout(Protocol):
    """Rule by which the tokens of one row attend to each other and to cached ones."""

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None
    ) -> Tensor:
        """Attention in one layer.

        Args:
            module: the layer's attention module.
            q: [Q, heads, d] queries.
            k: [K, kv_heads, d] keys.
            v: [K, kv_heads, d] values.
            scale: factor of the scores.
            softcap: bound of the scores, or None.

        Returns:
            [Q, heads, d].
        """


@dataclass(frozen=True)
class TreeLayout(AttentionLayout):
    """N packed tokens behind a common prefix of P."""

    prefix_length: int
    buckets: list[RowBucket]
    recorded: KVStates | None = None  # gets the keys and values [P + N, kv_heads, d] of every layer

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None
    ) -> Tensor:
        """Takes the keys of P + N tokens, and the queries of all or, if the prefix is cached, of the N."""
        if self.recorded is not None:
            self.recorded[module] = k, v
        sizes = [len(bucket.query_slots) for bucket in self.buckets]
        prefix, uncached = self.prefix_length, len(q) - sum(sizes)
        q = q.unflatten(1, (k.shape[1], -1))  # [P + N or N, kv_heads, group, d]
        outputs = [
            bucket.attend(queries, k, v, scale, softcap)
            for bucket, queries in zip(self.buckets, q[uncached:].split(sizes), strict=True)
        ]
        if uncached:
            attn_mask = torch.ones(1, 1, prefix, prefix, dtype=torch.bool, device=q.device).tril()
            q, k, v = (states[:prefix].transpose(0, 1).unsqueeze(1) for states in (q, k, v))
            attn_bias = make_attn_bias(attn_mask, *bias_layout(q, softcap))
            outputs = [attend_rows(q, k, v, attn_bias, scale, softcap).squeeze(1), *outputs]
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return out.transpose(0, 1).flatten(1, 2)


def switch_tree_attention(causal_lm: Any, on: bool) -> None:
    """Lets a model take layouts, where calls without one go to the attention that it had; or undoes that.

    Raises:
        ValueError: if the model's attention cannot be replaced.
    """
    original = causal_lm.config._attn_implementation.removeprefix(NAME_PREFIX)
    name = NAME_PREFIX + original if on else original
    if name == causal_lm.config._attn_implementation:
        return
    if on:
        AttentionInterface.register(name, tree_attention)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[original])
        if not causal_lm._can_set_attn_implementation():
            raise ValueError(f"The attention of {type(causal_lm).__name__} cannot be replaced.")
    causal_lm.set_attn_implementation(name)


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    layout: AttentionLayout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention function of transformers for one row of tokens: [1, heads, Q, d] to [1, Q, heads, d].

    Raises:
        ValueError: if the model asks for what layouts do not have (attention sinks).
    """
    if layout is None:
        return _original_attention(module)(module, query, key, value, attention_mask, *args, **kwargs)
    if kwargs.get("s_aux") is not None:
        raise ValueError("Attention sinks are not supported in this layout.")
    scale, softcap = kwargs.get("scaling"), kwargs.get("softcap")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (_to_autocast_dtype(states[0].transpose(0, 1)) for states in (query, key, value))
    return layout.attend(module, q, k, v, scale, softcap)[None], None


def soft_cap(x: Tensor, bound: float | None) -> Tensor:
    """bound * tanh(x / bound), Gemma 2's soft cap (2024, arXiv:2408.00118, section 2); None is no bound."""
    return x if bound is None else torch.tanh(x / bound) * bound


def _to_autocast_dtype(states: Tensor) -> Tensor:
    # Under autocast rotary positions leave queries and keys in fp32, and values in bf16.
    kind = states.device.type
    return states.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else states


def _original_attention(module: Any) -> Any:
    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(
        module.config._attn_implementation.removeprefix(NAME_PREFIX), eager
    )
