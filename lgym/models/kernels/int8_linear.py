"""Frozen linear layers in int8: weights with one scale an output, activations with one scale a row.

    y = s_x s_w (X W^T),    X = round(x / s_x),    s_x = max |x| / 127    (and W, s_w alike)

X W^T is a product of whole numbers, which a CPU computes several times as fast as one in bf16 or fp32:
vector-wise quantization (Dettmers et al. 2022, arXiv:2208.07339). The gradient of x is computed
in the same way (SwitchBack, Wortsman et al. 2023, arXiv:2304.13013). A row's result does not
depend on those beside it, since sums of whole numbers are exact.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEVELS = 127
"""Largest whole number."""

GPU_ROWS, GPU_WIDTH = 17, 8
"""Rows of a product that CUDA takes at the least, and a factor of its widths."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n, k] as whole numbers, int8 [n, k], and their scales [n, 1] in fp32."""
    x = x.float()  # in which a CPU is quicker than in bf16, even with this copy
    smallest = torch.finfo(x.dtype).tiny  # for rows of zeros alone: gradients of long batches are small too
    scale = x.abs().amax(1, keepdim=True).div_(LEVELS).clamp_min_(smallest)
    return (x / scale).round_().to(torch.int8), scale


class RowsInCommon:
    """`quantize_rows` of what several layers ask for in turn, as queries, keys and values do, once.

    It keeps x, so that no other tensor takes its place in memory.
    """

    def __init__(self) -> None:
        self._of: Any = None
        self._x: Tensor | None = None
        self._rows: Any = None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.is_inference():  # whose changes are not counted
            return quantize_rows(x)
        of = x.data_ptr(), x._version, x.dtype, x.shape, x.stride()
        if of != self._of:
            self._of, self._x, self._rows = of, x.detach(), quantize_rows(x)
        return self._rows


rows_in_common = RowsInCommon()


def int8_product(rows: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """[n, m] product of whole numbers, int8 [n, k] with scales [n, 1] and int8 [k, m], in fp32."""
    count = len(rows)
    if rows.is_cuda:
        weight = weight.T.contiguous().T  # cuBLAS takes no other layout
        rows = F.pad(rows, (0, 0, 0, max(0, GPU_ROWS - count)))
    return torch._int_mm(rows, weight)[:count].float().mul_(scale)


def frozen_product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """[n, out] product of x [n, in] with a frozen weight [out, in], plus a bias [out]; in int8 where the
    weight has scales [out]."""
    if scale is None:
        return x @ weight.T if bias is None else torch.addmm(bias, x, weight.T)
    out = int8_product(*rows_in_common(x), weight.T).mul_(scale).to(x.dtype)
    return out if bias is None else out.add_(bias)


def frozen_product_backward(grad: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """[n, in] gradient of x above, from that of the product [n, out]."""
    if scale is None:
        return grad @ weight
    return int8_product(*quantize_rows(grad * scale), weight).to(grad.dtype)


class FrozenMap(torch.autograd.Function):
    """The map y of x [..., in] above, with a bias [out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight, scale)
        out = frozen_product(x.reshape(-1, x.shape[-1]), weight, scale, bias)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, scale = ctx.saved_tensors
        grad_x = frozen_product_backward(grad.reshape(-1, grad.shape[-1]), weight, scale)
        return grad_x.view(*grad.shape[:-1], -1), None, None, None


class Int8Linear(nn.Linear):
    """A frozen linear layer whose weight is int8 [out, in], with `scale` [out] in fp32."""

    scale: Tensor

    def forward(self, input: Tensor) -> Tensor:
        return FrozenMap.apply(input, self.weight, self.scale, self.bias)


@torch.no_grad()
def quantize_linear_layers(model: Any) -> int:
    """Makes the linear layers of a model of transformers `Int8Linear`, in place, but for its output layer and
    those whose widths are no multiples of 8.

    Returns:
        How many there are.
    """
    output = model.get_output_embeddings()
    layers = [
        module
        for module in model.modules()
        if type(module) is nn.Linear
        and module is not output
        and module.in_features % GPU_WIDTH == module.out_features % GPU_WIDTH == 0
    ]
    for layer in layers:
        weight, scale = quantize_rows(layer.weight.float())
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.register_buffer("scale", scale[:, 0], persistent=False)
        layer.requires_grad_(False).__class__ = Int8Linear
    return len(layers)
