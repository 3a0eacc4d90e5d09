"""Checks of input shapes, dtypes and ranges. All are cheap: none reads a tensor's entries."""

import torch
from torch import Tensor


def require_same_shape(**tensors: Tensor) -> None:
    """Raise ValueError, naming every shape, unless all are equal: a silent broadcast would mix the rows."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"shapes must be equal, got {shapes}")


def require_rank(rank: int, **tensors: Tensor) -> None:
    """Raise ValueError, naming the shape, unless each has `rank` dimensions."""
    for name, tensor in tensors.items():
        if tensor.dim() != rank:
            raise ValueError(f"{name} must have {rank} dimensions, got shape {list(tensor.shape)}")


def require_bool(**tensors: Tensor) -> None:
    """Raise ValueError, naming the dtype, unless each is a bool tensor: `~` means something else to a
    number."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.bool:
            raise ValueError(f"{name} must be a bool tensor, got {tensor.dtype}; pass {name}.bool()")


def require_between(low: float, high: float, **numbers: float) -> None:
    """Raise ValueError, naming the number, unless each lies in [low, high]."""
    for name, number in numbers.items():
        if not low <= number <= high:
            raise ValueError(f"{name} must lie in [{low}, {high}], got {number}")


def at_least_float32(x: Tensor) -> Tensor:
    """Convert to float32, or keep float64: half precision, integers and bools are raised.

    Args:
        x: [...].

    Returns:
        [...], in float32 or float64.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))
