"""Log-probabilities of chosen tokens over the whole vocabulary, without keeping what is as wide as the vocabulary.

The head is frozen, so the gradient of log p(token) is known as soon as its probabilities are:

    d log p(token) / d hidden = (W[token] - Σ_v p_v W[v]) / temperature
    d entropy / d hidden      = -Σ_v p_v (log p_v + entropy) W[v] / temperature

The sums are taken in the forward pass, some states at a time, and are all that is kept. (The idea of computing a loss's
gradient chunk by chunk beside it: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

STATES_AT_ONCE = 64
"""Hidden states whose logits are held at a time."""


def fused_token_logprobs(
    hidden: Tensor, weight: Tensor, owners: Tensor, tokens: Tensor, temperature: float, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Of n tokens, each drawn behind one of K states, and the states' entropies.

    Args:
        hidden: [K, H] hidden states.
        weight: [V, H] of the frozen head, which has no bias.
        owners: [n] int64, the state behind which each token was drawn.
        tokens: [n] int64.
        temperature: of the softmax.
        entropy_gradient: whether entropies have one.

    Returns:
        [n] log-probabilities and [K] entropies in nats, at least fp32.
    """
    return _TokenLogprobs.apply(hidden, weight, owners, tokens, temperature, entropy_gradient)


def plain_token_logprobs(
    logits: Tensor, owners: Tensor, tokens: Tensor, temperature: float, *, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """The same from [K, V] logits, for heads that are trained, have a bias or cap their logits."""
    if temperature != 1:
        logits = logits / temperature
    logprobs = logits.log_softmax(-1)
    known = logprobs if entropy_gradient else logprobs.detach()
    with torch.autocast(logits.device.type, enabled=False):  # which would take the sum in half precision
        return logprobs[owners, tokens], -torch.linalg.vecdot(known.exp(), known)


def fused_log_normalizers(hidden: Tensor, weight: Tensor) -> Tensor:
    """[K] logs of the softmax's denominators over the vocabulary, of [K, H] hidden states behind a frozen head [V, H]; at
    least fp32.

    d normaliser / d hidden = Σ_v p_v W[v]
    """
    return _LogNormalisers.apply(hidden, weight)


class _LogNormalisers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        normalisers = hidden.new_empty(len(hidden), dtype=precise)
        expected = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for start in range(0, len(hidden), STATES_AT_ONCE):
            part = slice(start, start + STATES_AT_ONCE)
            logits = (hidden[part] @ weight.T).to(precise)
            normalisers[part] = logits.logsumexp(-1)
            if expected is not None:
                expected[part] = (logits - normalisers[part, None]).exp_().to(weight.dtype) @ weight
        ctx.save_for_backward(expected)
        return normalisers

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
        owners: Tensor,
        tokens: Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        normalisers = hidden.new_empty(len(hidden), dtype=precise)
        entropies = torch.empty_like(normalisers)
        expected = torch.empty_like(hidden)  # Σ_v p_v W[v]
        weighed = torch.empty_like(hidden) if entropy_gradient else None  # Σ_v p_v log p_v W[v]
        logprobs = hidden.new_empty(len(tokens), dtype=precise)
        for start in range(0, len(hidden), STATES_AT_ONCE):
            part = slice(start, start + STATES_AT_ONCE)
            logits = (hidden[part] @ weight.T).to(precise)
            if temperature != 1:
                logits = logits / temperature
            normalisers[part] = logits.logsumexp(-1)
            mine = ((owners >= start) & (owners < start + STATES_AT_ONCE)).nonzero().squeeze(1)
            logprobs[mine] = logits[owners[mine] - start, tokens[mine]] - normalisers[owners[mine]]
            logits -= normalisers[part, None]
            probabilities = logits.exp()
            expected[part] = probabilities.to(weight.dtype) @ weight
            logits *= probabilities
            entropies[part] = -logits.sum(-1)
            if weighed is not None:
                weighed[part] = logits.to(weight.dtype) @ weight
        ctx.save_for_backward(weight, owners, tokens, expected, weighed, entropies)
        ctx.temperature = temperature
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, owners, tokens, expected, weighed, entropies = ctx.saved_tensors
        grad = (grad / ctx.temperature).to(weight.dtype)[:, None]
        total = torch.zeros_like(expected).index_add_(0, owners, grad * (weight[tokens] - expected[owners]))
        if weighed is not None:
            scale = (entropy_grad / ctx.temperature)[:, None]
            total -= (scale * (weighed + entropies[:, None] * expected)).to(total.dtype)
        return total, None, None, None, None, None
