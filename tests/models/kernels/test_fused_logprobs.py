"""Log-probabilities of tokens: the same values and gradients as through the whole vocabulary's logits."""

from __future__ import annotations

import pytest
import torch

from lgym.models.kernels import fused_logprobs
from lgym.models.kernels.fused_logprobs import FusedLogNormalizers, FusedTokenLogprobs


def inputs(dtype=torch.float64, states=7, tokens=20):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(states, 16, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(50, 16, generator=generator, dtype=torch.float64).to(dtype)
    state_index = torch.randint(states, (tokens,), generator=generator)
    return hidden, weight, state_index, torch.randint(50, (tokens,), generator=generator)


def plain(hidden, weight, state_index, tokens, temperature):
    logprobs = (
        (hidden @ weight.T).to(torch.promote_types(hidden.dtype, torch.float32)) / temperature
    ).log_softmax(-1)
    return logprobs[state_index, tokens], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_size", [1, 3, 64])
def test_values_and_gradients_are_the_plain_ones(monkeypatch, temperature, chunk_size):
    """Several tokens behind one state, none behind another, and states in several chunks."""
    monkeypatch.setattr(fused_logprobs, "CHUNK_SIZE", chunk_size)
    given = inputs()
    ours, expected = FusedTokenLogprobs.apply(*given, temperature, False), plain(*given, temperature)
    torch.testing.assert_close(ours, expected)
    weights = torch.linspace(-1, 1, 20, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((logprobs * weights).sum(), given[0])[0] for logprobs in (ours[0], expected[0])
    ]
    torch.testing.assert_close(*gradients)
    assert not ours[1].requires_grad
    ours, expected = FusedTokenLogprobs.apply(*given, temperature, True), plain(*given, temperature)
    losses = [(found[0] * weights).sum() + (found[1] * weights[:7]).sum() for found in (ours, expected)]
    torch.testing.assert_close(*(torch.autograd.grad(loss, given[0])[0] for loss in losses))
    assert len(set(given[2].tolist())) < 7 <= len(given[2])


def test_half_precision_is_as_close_as_the_plain_way():
    """Against float64: no further off than autograd through bf16 logits."""
    exact, half = inputs(states=200, tokens=400), inputs(torch.bfloat16, states=200, tokens=400)
    (reference,) = torch.autograd.grad(plain(*exact, 1.0)[0].sum(), exact[0])
    errors = []
    for results in (FusedTokenLogprobs.apply(*half, 1.0, False), plain(*half, 1.0)):
        (gradient,) = torch.autograd.grad(results[0].sum(), half[0])
        errors.append(float((gradient.double() - reference).abs().mean()))
    assert errors[0] < 1.2 * errors[1]


@pytest.mark.parametrize("chunk_size", [1, 3, 64])
def test_log_normalizers_have_the_plain_values_and_gradients(monkeypatch, chunk_size):
    """Scores of candidates kept logits as wide as the vocabulary for every state."""
    monkeypatch.setattr(fused_logprobs, "CHUNK_SIZE", chunk_size)
    hidden, weight, *_ = inputs()
    ours, expected = FusedLogNormalizers.apply(hidden, weight), (hidden @ weight.T).logsumexp(-1)
    torch.testing.assert_close(ours, expected)
    assert [tensor.shape for tensor in ours.grad_fn.saved_tensors] == [(7, 16)]
    weights = torch.linspace(-1, 1, 7, dtype=torch.float64)
    torch.testing.assert_close(
        *(torch.autograd.grad((found * weights).sum(), hidden)[0] for found in (ours, expected))
    )
    with torch.no_grad():
        torch.testing.assert_close(FusedLogNormalizers.apply(hidden, weight), expected)
