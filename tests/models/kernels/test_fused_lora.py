"""The fused LoRA layer against peft's own, and where it steps aside."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from torch import nn

from lgym.models.kernels.float32 import use_float32_adapters
from lgym.models.kernels.fused_lora import FusedLoraLinear, LoraMap, fuse_lora


def adapted(*, dtype=torch.float64, bias=True, dropout=0.0, fused=True, **settings):
    """One linear layer 6 -> 5 with an adapter of rank 3 that is not zero."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 5, bias=bias, dtype=dtype))
    model = get_peft_model(
        body, LoraConfig(r=3, lora_alpha=12, target_modules=["0"], lora_dropout=dropout, **settings)
    )
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn_like(parameter, dtype=torch.promote_types(dtype, torch.float32))
    use_float32_adapters(model)
    if dtype == torch.float64:
        model.double()
    if fused:
        fuse_lora(model)
    return model


def outputs_and_gradients(model, x):
    x = x.clone().requires_grad_()
    y = model(x)
    (y.double() * torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view_as(y)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.requires_grad)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)])
def test_equals_pefts_layer(bias, shape):
    x = torch.randn(shape, dtype=torch.float64)
    ours, theirs = (outputs_and_gradients(adapted(bias=bias, fused=fused), x) for fused in (True, False))
    assert len(ours) == 4
    for mine, peers in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, peers, rtol=1e-12, atol=1e-12)


def test_gradients_by_finite_differences():
    """Independent of peft: scaling, transposes and the frozen weight."""
    torch.manual_seed(0)
    x, w, bias, a, b = (
        torch.randn(s, dtype=torch.float64) for s in [(2, 4, 6), (5, 6), (5,), (3, 6), (5, 3)]
    )
    for tensor in (x, a, b):
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, a, b: LoraMap.apply(x, w, None, bias, a, b, 2.5), (x, a, b))


def test_half_precision_is_as_close_as_pefts():
    """fp32 adapters beside bf16 weights: fp32 gradients, and no more error than the unfused layer."""
    x = torch.randn(64, 6)
    exact = outputs_and_gradients(
        _as(adapted(dtype=torch.bfloat16, fused=False), torch.float64), x.bfloat16().double()
    )
    errors = {}
    for fused in (True, False):
        results = outputs_and_gradients(adapted(dtype=torch.bfloat16, fused=fused), x.bfloat16())
        assert [r.dtype for r in results] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
        errors[fused] = [
            float((r.double() - e).norm() / e.norm()) for r, e in zip(results, exact, strict=True)
        ]
    for ours, theirs in zip(errors[True], errors[False], strict=True):
        assert ours < 1.5 * theirs + 1e-6


def _as(model, dtype):
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def test_switched_off_it_is_the_frozen_layer():
    model, x = adapted(), torch.randn(4, 6, dtype=torch.float64)
    with model.disable_adapter():
        torch.testing.assert_close(model(x), model.get_base_model()[0].base_layer(x))
    assert not torch.allclose(model(x), model.get_base_model()[0].base_layer(x))


@pytest.mark.parametrize("settings", [{"use_dora": True}, {"dropout": 0.5}, {"lora_bias": True}])
def test_anything_but_plain_lora_goes_pefts_own_way(settings):
    """A fused DoRA layer would silently be a LoRA one."""
    model, x = adapted(**settings), torch.randn(4, 6, dtype=torch.float64)
    torch.manual_seed(3)
    ours = model(x)
    layer = model.get_base_model()[0]
    torch.manual_seed(3)
    torch.testing.assert_close(ours, LoraLinear.forward(layer, x))
    assert layer._plain_adapter() is None


def test_merging_still_works():
    model, x = adapted(), torch.randn(4, 6, dtype=torch.float64)
    assert isinstance(model.get_base_model()[0], FusedLoraLinear)
    expected = model(x)
    torch.testing.assert_close(model.merge_and_unload()(x), expected)
