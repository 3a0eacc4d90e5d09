"""Fused RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467, equation 4).

    y = x / rms(x) * w          rms(x) = sqrt(mean(x^2) + eps)

transformers computes this in eight operations, one of which multiplies bf16 with fp32, the slowest of all on
a CPU; the backward pass keeps and reads as many intermediate results. Here only x and 1 / rms(x) are kept.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class RMSNormMap(torch.autograd.Function):
    """The map above of x [..., H], with frozen w [H], in at least fp32; the result has the wider dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # [..., 1], 1 / rms
        ctx.save_for_backward(x, weight, scale)
        return _times(x, scale).mul_(weight.to(wide)).to(torch.promote_types(x.dtype, weight.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed = _times(x, scale)
        grad_normed = _times(grad, weight.to(scale.dtype))
        along = torch.linalg.vecdot(grad_normed, normed).unsqueeze(-1).div_(-x.shape[-1])
        return grad_normed.addcmul_(normed, along).mul_(scale).to(x.dtype), None, None


def _times(x: Tensor, factor: Tensor) -> Tensor:
    # in the factor's precision, and in new memory
    wide = x.to(factor.dtype)
    return wide * factor if wide is x else wide.mul_(factor)


class FusedRMSNorm(nn.Module):
    """RMSNorm with a frozen weight; takes the place of a model's own class."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return RMSNormMap.apply(hidden_states, self.weight, self.eps)


@torch.no_grad()
def fuse_norms(model: nn.Module) -> None:
    """Fuses every frozen RMSNorm that computes the formula above, in place; names and weights stay."""
    norm: Any
    for norm in model.modules():
        eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        if type(norm).__name__.endswith("RMSNorm") and isinstance(eps, float) and _is_plain(norm, eps):
            norm.eps = eps
            norm.__class__ = FusedRMSNorm


def _is_plain(norm: nn.Module, eps: float) -> bool:
    parameters = dict(norm.named_parameters())
    weight = parameters.pop("weight", None)
    if weight is None or parameters or weight.requires_grad:
        return False
    if weight.dim() != 1 or not weight.dtype.is_floating_point:
        return False
    probe = torch.linspace(-2, 3, weight.numel(), dtype=weight.dtype, device=weight.device).expand(2, -1)
    tolerance = 4 * torch.finfo(weight.dtype).eps
    fused = RMSNormMap.apply(probe, weight, eps)
    return torch.allclose(norm(probe), fused, rtol=tolerance, atol=tolerance)  # Gemma's multiplies with 1 + w
