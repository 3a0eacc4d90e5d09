"""Half the widths of 95 % confidence intervals, of what evaluations measure."""

import math

import torch
from torch import Tensor

Z = 1.96
"""The normal distribution has 95 % of its mass within so many standard deviations."""


def mean_margin(std: Tensor, n: int) -> Tensor:
    """Half the width of the interval of a mean: 1.96 s / sqrt(n); infinite for fewer than two values.

    Args:
        std: s, with n - 1 in its denominator.
        n: number of values.
    """
    return Z * std / math.sqrt(n) if n > 1 else torch.full_like(std, math.inf)


def wilson_margin(rate: Tensor, n: Tensor) -> Tensor:
    """Distance from a rate of n trials to the farther end of its interval, which is not empty where all or
    none succeeded.

    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n). "Probable Inference, the Law of Succession, and
    Statistical Inference", Wilson 1927.
    """
    n = n.to(rate.dtype)
    center = (rate + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z * (rate * (1 - rate) / n + Z**2 / (4 * n**2)).sqrt() / (1 + Z**2 / n)
    return (center - rate).abs() + half
