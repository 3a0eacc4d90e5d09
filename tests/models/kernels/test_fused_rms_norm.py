"""The fused RMSNorm against transformers' own, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from helpers import tiny
from lgym.models.kernels.fused_rms_norm import FusedRMSNorm, RMSNormMap, fuse_norms


def frozen(norm: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A norm with weights that are neither 0 nor 1, in a model of one layer."""
    nn.init.uniform_(norm.weight, 0.5, 2.0)
    return nn.Sequential(norm).to(dtype).requires_grad_(False)


def output_and_gradient(norm: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    y = norm(x)
    (y.double() * torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view_as(y)).sum().backward()
    return y.detach(), x.grad


def test_gradients_by_finite_differences():
    x, weight = (
        torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True),
        torch.rand(6, dtype=torch.float64),
    )
    assert torch.autograd.gradcheck(lambda x: RMSNormMap.apply(x, weight, 1e-3), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_as_exact_as_transformers(dtype):
    """Against the formula in float64: no more error than the norm that it replaces, forward and backward."""
    model = frozen(LlamaRMSNorm(64, eps=1e-5), dtype)
    x = torch.randn(50, 64).to(dtype) * 3
    exact = output_and_gradient(frozen_like(model), x.double())
    errors = {}
    for fused in (False, True):
        if fused:
            fuse_norms(model)
            assert isinstance(model[0], FusedRMSNorm)
        results = output_and_gradient(model, x)
        assert [r.dtype for r in results] == [dtype, dtype]
        errors[fused] = [
            float((r.double() - e).norm() / e.norm()) for r, e in zip(results, exact, strict=True)
        ]
    for ours, theirs in zip(errors[True], errors[False], strict=True):
        assert ours < 1.2 * theirs + 1e-7


def frozen_like(model: nn.Module) -> nn.Module:
    """The same weights in float64, unfused."""
    norm = LlamaRMSNorm(64, eps=1e-5).double().requires_grad_(False)
    norm.weight.copy_(model[0].weight)
    return norm


def test_the_model_in_use_is_fused_and_keeps_its_names():
    llm = tiny.llm()
    norms = [module for module in llm.modules() if type(module).__name__.endswith("RMSNorm")]
    assert len(norms) == 2 * 2 + 1
    assert all(isinstance(norm, FusedRMSNorm) for norm in norms)
    plain = {
        name.removeprefix("base_model.model.")
        for name, _ in tiny.causal_lm().named_parameters()
        if "norm" in name
    }
    ours = {n.removeprefix("base_model.model.") for n, _ in llm.model.named_parameters() if "norm" in n}
    assert ours == plain


def test_a_wide_weight_widens_the_answer():
    """Quantized models keep their norms in fp32 and expect fp32 of them."""
    model = frozen(LlamaRMSNorm(8), torch.float32)
    x = torch.randn(2, 8).bfloat16()
    before = model(x)
    fuse_norms(model)
    assert model(x).dtype == before.dtype == torch.float32
    torch.testing.assert_close(model(x), before, rtol=1e-2, atol=1e-2)


def test_another_formula_is_left_alone():
    """Gemma multiplies with 1 + w."""
    model = frozen(Gemma2RMSNorm(8))
    fuse_norms(model)
    assert isinstance(model[0], Gemma2RMSNorm)


def test_a_trained_norm_is_left_alone():
    """The fused one has no gradient for its weight."""
    model = nn.Sequential(LlamaRMSNorm(8))
    fuse_norms(model)
    assert isinstance(model[0], LlamaRMSNorm)
