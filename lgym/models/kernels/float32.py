"""Trainable parameters in fp32 among frozen weights in half precision.

An optimizer step of 1e-4 on a weight of 0.05 vanishes in bf16, which keeps three digits. So trainable
parameters are held in fp32 and cast for the multiplication alone: the master copy *is* the parameter, and any
optimizer, clipping or checkpoint works on it as it is.
"""

from torch import Tensor, nn
from torch.nn import functional as F


class Float32Linear(nn.Linear):
    """A linear layer with fp32 parameters that multiplies in the precision of its input."""

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)


def use_float32_adapters(model: nn.Module) -> None:
    """Makes the linear maps inside peft's LoRA layers `Float32Linear`, in place; names stay."""
    from peft.tuners.lora import LoraLayer

    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.cast_input_dtype_enabled = False  # peft would cast every activation to fp32 instead
            for linear in (*layer.lora_A.values(), *layer.lora_B.values()):
                if isinstance(linear, nn.Linear):
                    linear.float().__class__ = Float32Linear
