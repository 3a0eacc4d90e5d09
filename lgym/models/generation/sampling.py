"""Which distribution tokens are drawn from, and the drawing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lgym.functional.truncation import truncate_logits

BLOCK = 256
"""Tokens of the vocabulary that a draw first looks at as one."""


@dataclass(frozen=True)
class SamplingParams:
    """The distribution that tokens are drawn from: softmax(logits / temperature), cut off by top_k and top_p."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def probabilities(self, logits: Tensor) -> Tensor:
        """[..., V] logits of any precision to [..., V] probabilities, at least fp32."""
        precise = torch.promote_types(logits.dtype, torch.float32)
        if self.temperature != 1:
            logits = logits.to(precise) / self.temperature
        return truncate_logits(logits, top_k=self.top_k, top_p=self.top_p).softmax(-1, dtype=precise)


@dataclass(frozen=True)
class Sampler:
    """Tokens from distributions, one or more from each."""

    params: SamplingParams
    generator: torch.Generator | None
    """`None` takes the likeliest token each time."""

    def __call__(self, logits: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probabilities, [n].

        Args:
            logits: [R, V].
            owners: [n] int64, the row of the logits that each token is drawn from.
        """
        probabilities = self.params.probabilities(logits)
        if self.generator is None:
            tokens = probabilities.argmax(-1)[owners]
        else:
            size = 2, len(owners)
            uniform = torch.rand(size, generator=self.generator, device=self.generator.device, dtype=probabilities.dtype)
            tokens = inverse(probabilities, owners, *uniform.to(probabilities.device))
        return tokens, probabilities[owners, tokens].log()


def inverse(probabilities: Tensor, owners: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """[n] draws from the owners' rows of [R, V] probabilities, by two uniform numbers [n] each: a block of tokens, then a
    token of the block.

    A sum over each block is all that looks at the whole vocabulary; noise for every token would take longer than a small
    model takes for its logits.
    """
    blocks = nn.functional.pad(probabilities, (0, -probabilities.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    block = _place(blocks.sum(-1)[owners], first)
    return block * BLOCK + _place(blocks[owners, block], second)


def _place(weights: Tensor, uniform: Tensor) -> Tensor:
    """[n] places of [n, k] weights, each drawn as often as it weighs; never one of weight 0."""
    sums = weights.cumsum(-1)
    total = sums[:, -1:]
    target = (uniform[:, None] * total).minimum(total.nextafter(torch.zeros_like(total)))
    return (sums <= target).sum(-1)
