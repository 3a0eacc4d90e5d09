"""Modules whose precision is their own, whatever a trainer's is."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class FixedPrecision(nn.Module):
    """A module whose precision is fixed when it is made: moving it changes the device and never the dtype, so
    that Lightning's `bf16-true` rounds nothing that is trained. A step of 0.003 on a number of 1 vanishes in
    bf16, which keeps three digits."""

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> "FixedPrecision":
        def keep_dtype(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            return converted if converted.dtype == tensor.dtype else tensor.to(converted.device)

        return super()._apply(keep_dtype, *args, **kwargs)
