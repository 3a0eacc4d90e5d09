"""Fused log-probabilities of chosen tokens, without storing anything of the vocabulary's width.

The head is frozen, so the gradient of log p(token) is known as soon as its probabilities are:

    d log p(token) / d hidden = (W[token] - Σ_v p_v W[v]) / temperature
    d entropy / d hidden      = -Σ_v p_v (log p_v + entropy) W[v] / temperature

The sums are taken in the forward pass, some states at a time, and nothing else is stored. (Computing a loss's gradient
beside it, chunk by chunk: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_SIZE = 64  # hidden states whose logits are held at a time


def fused_token_logprobs(
    hidden: Tensor, weight: Tensor, state_index: Tensor, tokens: Tensor, temperature: float, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of n tokens, each behind one of K states, and the entropies of the states.

    Args:
        hidden: [K, H] hidden states.
        weight: [V, H] weight of the frozen head, which has no bias.
        state_index: [n] int64, the state behind which each token stands.
        tokens: [n] int64.
        temperature: divisor of the logits.
        entropy_gradient: give entropies a gradient.

    Returns:
        [n] log-probabilities and [K] entropies in nats, at least fp32.
    """
    return _TokenLogprobs.apply(hidden, weight, state_index, tokens, temperature, entropy_gradient)


def plain_token_logprobs(
    logits: Tensor, state_index: Tensor, tokens: Tensor, temperature: float, *, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """`fused_token_logprobs` from [K, V] logits, for heads that are trained, have a bias or cap their logits."""
    if temperature != 1:
        logits = logits / temperature
    logprobs = logits.log_softmax(-1)
    entropy_logprobs = logprobs if entropy_gradient else logprobs.detach()
    with torch.autocast(logits.device.type, enabled=False):  # which would take the sum in half precision
        return logprobs[state_index, tokens], -torch.linalg.vecdot(entropy_logprobs.exp(), entropy_logprobs)


def fused_log_normalizers(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logsumexp of the logits over the vocabulary, at least fp32.

    d log_normalizer / d hidden = Σ_v p_v W[v]

    Args:
        hidden: [K, H] hidden states.
        weight: [V, H] weight of the frozen head, which has no bias.

    Returns:
        [K].
    """
    return _LogNormalizers.apply(hidden, weight)


class _LogNormalizers(torch.autograd.Function):
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


class _TokenLogprobs(torch.autograd.Function):
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
        total = torch.zeros_like(expected).index_add_(0, state_index, grad * (weight[tokens] - expected[state_index]))
        if log_expected is not None:
            scale = (entropy_grad / ctx.temperature)[:, None]
            total -= (scale * (log_expected + entropies[:, None] * expected)).to(total.dtype)
        return total, None, None, None, None, None
