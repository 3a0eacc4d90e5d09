"""A frozen linear layer and its LoRA adapter as one step of autograd.

    y = x W^T + s (x A^T) B^T          (Hu et al. 2021, arXiv:2106.09685, equation 3)

peft writes this as three linear maps, a product and a sum, each of which reads and writes activations as large as y, in
both directions. Here the adapter's part is added while it is multiplied (`addmm`), the scaling s goes into B, which is
small, and nothing but x and x A^T is kept for the gradients. While the weights are fixed, A and s B are cast once
(`hold_adapters`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class LoraMap(torch.autograd.Function):
    """The map above for x [..., in], W [out, in] frozen, A [r, in] and B [out, r] of any precision; multiplies in x's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float) -> Tensor:
        a_cast, b_cast = _cast(a, b, scaling, x.dtype)
        out, rows, inner = _mapped(x, weight, bias, a_cast, b_cast)
        ctx.save_for_backward(rows, weight, a_cast, b_cast, inner)
        ctx.scaling, ctx.shape, ctx.dtypes = scaling, x.shape, (a.dtype, b.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, a, b, inner = ctx.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        grad_inner = grad @ b  # [rows, r]
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ weight
            grad_x.addmm_(grad_inner, a)
            grad_x = grad_x.view(ctx.shape)
        grad_a = (grad_inner.T @ rows).to(ctx.dtypes[0])
        grad_b = (grad.T @ inner).to(ctx.dtypes[1]) * ctx.scaling
        return grad_x, None, None, grad_a, grad_b, None


def _cast(a: Tensor, b: Tensor, scaling: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A and s B in the precision that they are multiplied in."""
    return a.to(dtype), (b * scaling).to(dtype)


def _mapped(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y [..., out] of x [..., in], its rows [n, in], and what A makes of them [n, r]; b is s B."""
    rows = x.reshape(-1, x.shape[-1])
    inner = rows @ a.T
    out = rows @ weight.T if bias is None else torch.addmm(bias, rows, weight.T)
    out.addmm_(inner, b.T)
    return out.view(*x.shape[:-1], -1), rows, inner


class FusedLoraLinear(LoraLinear):
    """peft's LoRA layer, fused wherever it is a plain one: unquantized, one adapter, not merged, no dropout, no autocast.
    Everything else goes peft's own way."""

    held: tuple[Tensor, Tensor] | None = None
    """A and s B in the frozen weight's precision, while neither changes."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        name = self._plain_adapter()
        if name is None or args or kwargs or torch.is_autocast_enabled(x.device.type):
            return super().forward(x, *args, **kwargs)
        base: Any = self.get_base_layer()
        if self.held is not None and not torch.is_grad_enabled():
            return _mapped(x, base.weight, base.bias, *self.held)[0]
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        return LoraMap.apply(x, base.weight, base.bias, a, b, self.scaling[name])

    @torch.no_grad()
    def hold(self) -> None:
        """Casts A and s B for all calls until `held` is taken back; nothing where the layer is not a plain one."""
        name = self._plain_adapter()
        if name is not None:
            base: Any = self.get_base_layer()
            a: Any = self.lora_A[name].weight
            b: Any = self.lora_B[name].weight
            self.held = _cast(a, b, self.scaling[name], base.weight.dtype)

    def _plain_adapter(self) -> str | None:
        """The name of the only adapter, if it is on and adds nothing but B A x."""
        active = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(active) != 1:
            return None
        (name,) = active
        plain = name not in self.lora_variant and isinstance(self.lora_dropout[name], nn.Identity)
        return name if plain and not self.lora_bias[name] else None


def fuse_lora(model: nn.Module) -> None:
    """Makes peft's LoRA layers over plain frozen linear layers fused ones, in place; names and weights stay."""
    for layer in model.modules():
        if type(layer) is LoraLinear and type(layer.get_base_layer()) is nn.Linear:
            base = layer.get_base_layer()
            if not base.weight.requires_grad and (base.bias is None or not base.bias.requires_grad):
                layer.__class__ = FusedLoraLinear


@contextmanager
def hold_adapters(model: nn.Module) -> Iterator[None]:
    """Within, the adapters' weights do not change, and are cast once, not for every token that is written."""
    layers = [layer for layer in model.modules() if isinstance(layer, FusedLoraLinear)]
    for layer in layers:
        layer.hold()
    try:
        yield
    finally:
        for layer in layers:
            layer.held = None
