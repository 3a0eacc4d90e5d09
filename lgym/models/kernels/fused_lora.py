"""Fused LoRA: a frozen linear layer and its adapter as one step of autograd.

    y = x W^T + s (x A^T) B^T          (Hu et al. 2021, arXiv:2106.09685, equation 3)

peft computes three linear maps, a product and a sum, each of which reads and writes activations as large as
y, in both directions. Here the adapter's part is added while it is multiplied (`addmm`), the scaling s goes
into B, which is small, and nothing but x and x A^T is kept for the gradients.
"""

from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lgym.models.kernels.int8_linear import Int8Linear, frozen_product, frozen_product_backward


class LoraMap(torch.autograd.Function):
    """The map above of x [..., in], with frozen W [out, in], A [r, in] and B [out, r], in x's precision.

    W may be int8, with scales [out].
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        scaling: float,
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        a_cast, b_cast = a.to(x.dtype), (b * scaling).to(x.dtype)
        inner = rows @ a_cast.T  # [rows, r]
        out = frozen_product(rows, weight, scale, bias)
        out.addmm_(inner, b_cast.T)
        ctx.save_for_backward(rows, weight, scale, a_cast, b_cast, inner)
        ctx.scaling = scaling
        ctx.shape = x.shape
        ctx.dtypes = a.dtype, b.dtype
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, scale, a, b, inner = ctx.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        grad_inner = grad @ b  # [rows, r]
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = frozen_product_backward(grad, weight, scale)
            grad_x.addmm_(grad_inner, a)
            grad_x = grad_x.view(ctx.shape)
        grad_a = (grad_inner.T @ rows).to(ctx.dtypes[0])
        grad_b = (grad.T @ inner).to(ctx.dtypes[1]) * ctx.scaling
        return grad_x, None, None, None, grad_a, grad_b, None


class FusedLoraLinear(LoraLinear):
    """peft's LoRA layer, fused where it is plain: at most in int8, one adapter, not merged, no dropout, no
    autocast.

    Everything else goes to peft's own forward.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        name = self._plain_adapter()
        if name is None or args or kwargs or torch.is_autocast_enabled(x.device.type):
            return super().forward(x, *args, **kwargs)
        base = self.get_base_layer()
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        scale = getattr(base, "scale", None)
        return LoraMap.apply(x, base.weight, scale, base.bias, a, b, self.scaling[name])

    def _plain_adapter(self) -> str | None:
        # the name of the only adapter, if it is on and adds nothing but B A x
        active = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(active) != 1:
            return None
        (name,) = active
        dropout = getattr(self.lora_dropout[name], "p", 0.0)  # an nn.Identity has none
        return name if name not in self.lora_variant and dropout == 0 and not self.lora_bias[name] else None


def fuse_lora(model: nn.Module) -> None:
    """Fuses peft's LoRA layers over plain frozen linear layers, in place; names and weights stay."""
    for layer in model.modules():
        if (
            type(layer) is LoraLinear
            and type(layer.get_base_layer()) in (nn.Linear, Int8Linear)
            and not any(parameter.requires_grad for parameter in layer.get_base_layer().parameters())
        ):
            layer.__class__ = FusedLoraLinear
