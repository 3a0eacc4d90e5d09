"""Sampling parameters, and sampling of tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lgym.functional.truncation import truncate_logits

VOCAB_BLOCK = 256  # tokens of the vocabulary that sampling first takes as one


@dataclass(frozen=True)
class SamplingParams:
    """Distribution of a sampled token: softmax(logits / temperature), truncated by top_k and top_p."""

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
    """Samples tokens with a generator; without one it takes the likeliest token each time."""

    params: SamplingParams
    generator: torch.Generator | None

    def __call__(self, logits: Tensor, row_index: Tensor) -> tuple[Tensor, Tensor]:
        """Samples n tokens, one or more per row.

        Args:
            logits: [R, V].
            row_index: [n] int64, the row of each sample.

        Returns:
            [n] tokens and [n] log-probabilities.
        """
        probabilities = self.params.probabilities(logits)
        if self.generator is None:
            tokens = probabilities.argmax(-1)[row_index]
        else:
            uniform = torch.rand(
                (2, len(row_index)),
                generator=self.generator,
                device=self.generator.device,
                dtype=probabilities.dtype,
            )
            tokens = sample_by_blocks(probabilities, row_index, *uniform.to(probabilities.device))
        return tokens, probabilities[row_index, tokens].log()


def sample_by_blocks(probabilities: Tensor, row_index: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Inverse transform sampling in two steps: a block of tokens, then a token of the block.

    The sums over blocks alone look at the whole vocabulary. Noise for every token (Gumbel-max) would take
    longer than the logits of a small model.

    Args:
        probabilities: [R, V].
        row_index: [n] int64, the row of each sample.
        first: [n] uniform numbers in [0, 1).
        second: [n] more.

    Returns:
        [n] int64 tokens.
    """
    blocks = nn.functional.pad(probabilities, (0, -probabilities.shape[1] % VOCAB_BLOCK)).unflatten(
        1, (-1, VOCAB_BLOCK)
    )
    block = _inverse_cdf(blocks.sum(-1)[row_index], first)
    return block * VOCAB_BLOCK + _inverse_cdf(blocks[row_index, block], second)


def _inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    sums = weights.cumsum(-1)
    total = sums[:, -1:]
    # below the total, so that no column of probability 0 is taken
    target = (uniform[:, None] * total).minimum(total.nextafter(torch.zeros_like(total)))
    return (sums <= target).sum(-1)
