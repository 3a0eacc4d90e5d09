"""Masked means, deviations and whitening.

A mask is a bool tensor, or non-negative weights of any dtype, of the shape of what it masks. An entry whose
weight is 0 is never read, so it may hold anything, NaN included.
"""

import torch
from torch import Tensor

from lgym.functional.inputs import at_least_float32, require_same_shape


def masked_mean(x: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Weighted mean of the entries that count.

    Σ w x / Σ w, over `dim` or over everything.

    Args:
        x: [...].
        mask: [...], bool or weights.
        dim: the dimensions to reduce; `None` reduces all.

    Returns:
        0-d, or [...] without `dim`; at least float32. Where nothing counts the mean is 0 with zero gradient:
        a row of padding teaches nothing.

    Raises:
        ValueError: if the shapes differ.
    """
    require_same_shape(x=x, mask=mask)
    x = at_least_float32(x)
    weights = mask.to(x.dtype)
    total = weights.sum(dim)
    return (x.masked_fill(weights == 0, 0.0) * weights).sum(dim) / total.masked_fill(total == 0, 1.0)


def masked_deviations(x: Tensor, mask: Tensor) -> Tensor:
    """Deviations from the weighted mean; 0 where an entry does not count.

    x - Σ w x / Σ w

    Args:
        x: [...].
        mask: [...], bool or weights.

    Returns:
        [...]; at least float32. Where all entries that count are equal, every deviation is exactly 0,
        whatever the rounding of their mean: the mean is taken of the distances from one of them.

    Raises:
        ValueError: if the shapes differ.
    """
    require_same_shape(x=x, mask=mask)
    x = at_least_float32(x)
    if x.numel() == 0:
        return x
    counted = mask != 0
    first_counted = counted.flatten().to(x.dtype).argmax(dim=0, keepdim=True)
    distances = x - x.flatten().gather(0, first_counted).squeeze(0)
    return (distances - masked_mean(distances, mask)).masked_fill(~counted, 0.0)


def whiten(x: Tensor, weights: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """Normalize to mean 0 and standard deviation 1 over the entries that count; 0 where one does not count.

    (x - μ) / (σ + eps), with μ and σ² the weighted mean and the weighted (population) variance.

    "What Matters In On-Policy Reinforcement Learning?", Andrychowicz et al. 2021, arXiv:2006.05990.

    Meant for constants such as advantages: the gradient of σ is not finite where all entries are equal.

    Args:
        x: [...]. Squares of the entries have to fit the dtype: float32 holds those of 1e19.
        weights: [...], bool or weights; `None` weighs all alike.
        eps: added to the standard deviation.

    Returns:
        [...]; at least float32. Where all entries that count are equal, or only one counts, all are 0.

    Raises:
        ValueError: if the shapes differ.
    """
    mask = torch.ones_like(x, dtype=torch.bool) if weights is None else weights
    require_same_shape(x=x, weights=mask)
    deviations = masked_deviations(x, mask)
    return deviations / (masked_mean(deviations.square(), mask).sqrt() + eps)
