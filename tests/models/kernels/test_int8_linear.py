"""Linear layers in int8: against the same product in double precision, and against the layers they replace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.runs import assert_same_run, lgym, scalars
from lgym.models import LLMConfig, LoraSettings, build_llm
from lgym.models.kernels.int8_linear import (
    LEVELS,
    Int8Linear,
    int8_product,
    quantize_linear_layers,
    quantize_rows,
    rows_in_common,
)
from lgym.types import ConfigError

DTYPES = [torch.float32, torch.bfloat16]


class Body(nn.Sequential):
    """Layers with what a model of transformers says of its output layer."""

    def get_output_embeddings(self) -> nn.Module:
        return self[-1]


def quantized(*, bias: bool, dtype: torch.dtype) -> tuple[nn.Linear, nn.Linear]:
    """A layer 48 -> 24, and the same in int8."""
    torch.manual_seed(0)
    layer = nn.Linear(48, 24, bias=bias, dtype=dtype)
    copy = nn.Linear(48, 24, bias=bias, dtype=dtype)
    copy.load_state_dict(layer.state_dict())
    body = Body(copy, nn.Linear(24, 2))
    assert quantize_linear_layers(body) == 1
    assert type(body[-1]) is nn.Linear
    return layer, body[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 3e4])
def test_rows_are_rounded_to_their_scale(dtype, size):
    """Catches numbers that turn around at 128, in bf16 above all, and a scale that is not the row's own."""
    torch.manual_seed(0)
    x = (torch.randn(2000, 8) * size).to(dtype)
    rows, scale = quantize_rows(x)
    assert rows.dtype == torch.int8
    assert rows.abs().max() <= LEVELS
    largest = x.double().abs().amax(1, keepdim=True)
    error = ((rows.double() * scale.double() - x.double()) / largest).abs().max()
    assert error < 0.5 / LEVELS + (0.008 if dtype == torch.bfloat16 else 1e-6)


def test_rows_of_zeros_and_numbers_that_are_none():
    x = torch.tensor([[0.0, 0.0], [1.0, float("nan")], [2.0, -1.0]])
    product = int8_product(*quantize_rows(x), torch.ones(2, 3, dtype=torch.int8))
    assert product[0].tolist() == [0.0] * 3
    assert product[1].isnan().all(), "a number that is none must not pass for one"
    torch.testing.assert_close(product[2], torch.full((3,), 1.0), atol=0.02, rtol=0)


def test_layers_of_one_input_share_its_rows(monkeypatch):
    """Three layers round it once; another input in its place, or a change of it, is rounded anew."""
    rounded = []

    def counted(x):
        rounded.append(x.clone())
        return quantize_rows(x)

    monkeypatch.setattr("lgym.models.kernels.int8_linear.quantize_rows", counted)
    for _ in range(3):  # three inputs, each of which would be given the memory of the one before
        x = torch.randn(4, 8)
        for _ in range(3):
            rows, scale = rows_in_common(x.view(4, 8))
            expected, expected_scale = quantize_rows(x)
            assert torch.equal(rows, expected)
            assert torch.equal(scale, expected_scale)
        del x
    assert len(rounded) == 3
    x = torch.randn(4, 8)
    rows_in_common(x)
    x[0] = 7.0
    assert torch.equal(rows_in_common(x)[0], quantize_rows(x)[0])


def test_layers_of_odd_widths_stay_as_they_are():
    """CUDA multiplies whole numbers in multiples of 8: the gate of a shared expert, one number wide, ended
    there in an error."""
    body = Body(nn.Linear(48, 20), nn.Linear(20, 48), nn.Linear(48, 1), nn.Linear(48, 24), nn.Linear(24, 2))
    assert quantize_linear_layers(body) == 1
    assert [type(layer) is Int8Linear for layer in body] == [False] * 3 + [True, False]


def test_layers_run_in_inference_mode():
    """Its tensors do not count their changes, and asking for the count is an error there."""
    _, layer = quantized(bias=True, dtype=torch.float32)
    x = torch.randn(4, 48)
    with torch.inference_mode():
        changed = x.clone()
        layer(changed)
        changed[0] = 7.0
        got = layer(changed)
    x[0] = 7.0
    assert torch.equal(got, layer(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(48,), (5, 48), (2, 3, 48)])
def test_outputs_and_gradients_are_those_of_the_layer(dtype, bias, shape):
    """Within what the roundings of weight and row allow: 1 % of the result's size. Catches a missing scale, a
    transpose, and a bias that is scaled."""
    layer, ours = quantized(bias=bias, dtype=dtype)
    x = torch.randn(shape, dtype=dtype)
    weights = torch.randn(*shape[:-1], 24, dtype=dtype)
    results = []
    for module in (layer, ours):
        given = x.clone().requires_grad_()
        y = module(given)
        assert y.dtype == dtype
        (y * weights).sum().backward()
        results.append((y.detach().double(), given.grad.double()))
    for expected, got in zip(*results, strict=True):
        assert float((got - expected).norm() / expected.norm()) < 0.02
    assert all(parameter.grad is None for parameter in ours.parameters())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_those_beside_it(dtype):
    """Bit for bit, from one row on: so frozen blocks can be kept."""
    _, layer = quantized(bias=True, dtype=dtype)
    x = torch.randn(70, 48, dtype=dtype)
    whole = layer(x)
    assert all(torch.equal(layer(x[:n]), whole[:n]) for n in (1, 2, 15, 16, 17, 64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_in_int8_is_close_to_itself(model_folder, dtype):
    """Adapters on int8 layers start from the model's own distribution; all linear layers but the output's are
    in int8, and what comes out of frozen blocks is kept."""
    device = torch.device("cpu")
    llms = []
    for quantization in (None, "int8"):
        torch.manual_seed(0)
        config = LLMConfig(str(model_folder), lora=LoraSettings(last_blocks=1), quantization=quantization)
        llms.append(build_llm(config, dtype=dtype, device=device))
    plain, ours = llms
    layers = {name: type(module) for name, module in ours.causal_lm.named_modules()}
    kinds = [kind for kind in layers.values() if issubclass(kind, nn.Linear)]
    assert kinds.count(Int8Linear) == 7 * plain.causal_lm.config.num_hidden_layers
    assert ours.layout == plain.layout == "tree"
    assert ours.frozen_blocks is not None
    assert {p.dtype for p in ours.parameters() if p.requires_grad} == {torch.float32}
    ids = torch.tensor([[5, 9, 11, 40, 7, 3]])
    with torch.no_grad():
        expected, got = (llm.causal_lm(input_ids=ids).logits.float().log_softmax(-1) for llm in llms)
    divergence = (expected.exp() * (expected - got)).sum(-1)
    assert 0 < divergence.max() < 0.01


def test_a_run_in_int8_learns_and_resumes_exactly(tmp_path, model_folder):
    """The same numbers act and learn: the first forward of training finds the rollout's log-probabilities."""
    options = {"model__init_args__llm__quantization": "int8"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=3, **options)
    lgym("fit", parts, model_folder, trainer__max_epochs=2, **options)
    lgym("fit", parts, model_folder, trainer__max_epochs=3, ckpt_path="last", **options)
    assert_same_run(whole, parts, validated_alike=False)
    assert max(scalars(whole)["policy/logprob_diff_max"].values()) < 0.02


def test_what_cannot_be_in_int8_is_refused(monkeypatch, model_folder):
    from lgym.models import build

    config = LLMConfig(str(model_folder), quantization="int8")
    with pytest.raises(ConfigError, match="this device is mps"):
        build_llm(config, dtype=torch.float32, device=torch.device("mps"))
    monkeypatch.setattr(build, "quantize_linear_layers", lambda model: 0)
    with pytest.raises(ConfigError, match="has none"):
        build_llm(config, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match="quantization: int8 needs adapters"):
        LLMConfig(lora=None, quantization="int8")


def test_a_plain_model_comes_in_int8_too(model_folder):
    from lgym.models import load_model_and_tokenizer

    model, _ = load_model_and_tokenizer(str(model_folder), quantization="int8")
    assert sum(isinstance(module, Int8Linear) for module in model.modules()) > 0
