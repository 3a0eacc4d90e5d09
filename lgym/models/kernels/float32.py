"""Trainable parameters that stay in fp32 while the frozen weights around them are in half precision.

An optimizer step of 1e-4 on a weight of 0.05 vanishes in bf16, which keeps three digits. So what is trained is held in
fp32, and cast for the multiplication only: the master copy *is* the parameter, and any optimizer, clipping or
checkpoint works on it as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F


class Float32Linear(nn.Linear):
    """A linear layer with fp32 parameters that multiplies in the precision of its input."""

    @classmethod
    def of(cls, linear: nn.Linear) -> Float32Linear:
        """The same map, weights shared where they are in fp32 already."""
        same = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        same.weight = nn.Parameter(linear.weight.float(), requires_grad=linear.weight.requires_grad)
        if linear.bias is not None:
            same.bias = nn.Parameter(linear.bias.float(), requires_grad=linear.bias.requires_grad)
        return same

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)


def keep_dtypes(convert: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Makes of a conversion (as `nn.Module._apply` gets it) one that moves tensors but leaves their precision."""

    def apply(tensor: Tensor) -> Tensor:
        converted = convert(tensor)
        return converted if converted.dtype == tensor.dtype else tensor.to(converted.device)

    return apply


def use_float32_adapters(model: nn.Module) -> None:
    """Replaces the linear maps inside peft's LoRA layers by `Float32Linear`, in place; names and weights stay."""
    from peft.tuners.lora import LoraLayer

    for layer in model.modules():
        if not isinstance(layer, LoraLayer):
            continue
        layer.cast_input_dtype_enabled = False  # peft would cast every activation to fp32 instead
        for maps in (layer.lora_A, layer.lora_B):
            for name, linear in maps.items():
                if isinstance(linear, nn.Linear):
                    maps[name] = Float32Linear.of(linear)
