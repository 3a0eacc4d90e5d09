"""Fused log-probabilities of chosen tokens, without storing anything of the vocabulary's width.

The head is frozen, so the gradient of log p(token) is known as soon as its probabilities are:

    d log p(token) / d hidden = (W[token] - Σ_v p_v W[v]) / temperature
    d entropy / d hidden      = -Σ_v p_v (log p_v + entropy) W[v] / temperature

The sums are taken in the forward pass, some states at a time, and nothing else is stored. (Computing a loss's
gradient beside it, chunk by chunk: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2.)
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_SIZE = 64  # hidden states whose logits are held at a time


class FusedLogNormalizers(torch.autograd.Function):
    """Logsumexp of the logits over the vocabulary: hidden states [K, H] and a frozen head [V, H] to [K], at
    least fp32.

    d log_normalizer / d hidden = Σ_v p_v W[v]
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        normalizers = hidden.new_empty(len(hidden), dtype=precise)
        expected = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for start in range(0, len(hidden), CHUNK_SIZE):
            part = slice(start, start + CHUNK_SIZE)
            logits = (hidden[part] @ weight.T).to(precise)
            normalizers[part] = logits.logsumexp(-1)
            if expected is not None:
                expected[part] = (logits - normalizers[part, None]).exp_().to(weight.dtype) @ weight
        ctx.save_for_backward(expected)
        return normalizers

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        (expected,) = ctx.saved_tensors
        return grad.to(expected.dtype)[:, None] * expected, None


class FusedTokenLogprobs(torch.autograd.Function):
    """Log-probabilities [n] of tokens and entropies [K] in nats, at least fp32, of a frozen head without
    bias.

    The arguments are hidden states [K, H], the head's weight [V, H], the state [n] behind which each token
    stands, the tokens [n], the divisor of the logits, and True for entropies that have a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        state_index: Tensor,
        tokens: Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        normalizers = hidden.new_empty(len(hidden), dtype=precise)
        entropies = torch.empty_like(normalizers)
        expected = torch.empty_like(hidden)  # Σ_v p_v W[v]
        log_expected = torch.empty_like(hidden) if entropy_gradient else None  # Σ_v p_v log p_v W[v]
        logprobs = hidden.new_empty(len(tokens), dtype=precise)
        for start in range(0, len(hidden), CHUNK_SIZE):
            part = slice(start, start + CHUNK_SIZE)
            logits = (hidden[part] @ weight.T).to(precise)
            if temperature != 1:
                logits = logits / temperature
            normalizers[part] = logits.logsumexp(-1)
            mine = ((state_index >= start) & (state_index < start + CHUNK_SIZE)).nonzero().squeeze(1)
            logprobs[mine] = logits[state_index[mine] - start, tokens[mine]] - normalizers[state_index[mine]]
            logits -= normalizers[part, None]
            probabilities = logits.exp()
            expected[part] = probabilities.to(weight.dtype) @ weight
            logits *= probabilities
            entropies[part] = -logits.sum(-1)
            if log_expected is not None:
                log_expected[part] = logits.to(weight.dtype) @ weight
        ctx.save_for_backward(weight, state_index, tokens, expected, log_expected, entropies)
        ctx.temperature = temperature
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, state_index, tokens, expected, log_expected, entropies = ctx.saved_tensors
        grad = (grad / ctx.temperature).to(weight.dtype)[:, None]
        total = torch.zeros_like(expected).index_add_(
            0, state_index, grad * (weight[tokens] - expected[state_index])
        )
        if log_expected is not None:
            scale = (entropy_grad / ctx.temperature)[:, None]
            total -= (scale * (log_expected + entropies[:, None] * expected)).to(total.dtype)
        return total, None, None, None, None, None
