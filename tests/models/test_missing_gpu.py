"""A GPU that is asked for and not there: one falls back to the CPU with a word, several are refused."""

from __future__ import annotations

import warnings

import pytest
import torch

from helpers.runs import checkpoint, lgym
from lgym.models import LoraSettings, load_model_and_tokenizer, wrap_pretrained
from lgym.models import build as build_module
from lgym.models.devices import available_accelerator, available_device, multiplies_bf16
from lgym.types import ConfigError


@pytest.fixture(autouse=True)
def _without_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "mps", torch.device("cuda", 1)])
def test_a_gpu_that_is_not_there_is_the_cpu(device):
    with pytest.warns(UserWarning, match=rf"^device {device} is not there .* running on the CPU\.$"):
        assert available_device(device) == torch.device("cpu")


def test_a_device_that_is_there_is_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert available_device("cuda:1") == torch.device("cuda", 1)
        assert available_device("cpu") == torch.device("cpu")
        assert available_accelerator("gpu", 4, 1) == {}


@pytest.mark.parametrize("devices", [1, "1", "auto", -1, "-1", [3], "0,"])
@pytest.mark.parametrize("accelerator", ["gpu", "cuda", "mps"])
def test_one_falls_back(accelerator, devices):
    with pytest.warns(UserWarning, match=f"trainer.accelerator {accelerator} is not there"):
        settings = available_accelerator(accelerator, devices, 1)
    assert settings == {"accelerator": "cpu", "devices": 1}


@pytest.mark.parametrize(
    ("devices", "nodes"), [(2, 1), ("2", 1), ([0, 1], 1), ("0,1", 1), (1, 2), ("auto", 2)]
)
def test_several_are_refused(devices, nodes):
    with pytest.raises(ConfigError, match=r"asks for 2 GPUs, and torch .* finds none"):
        available_accelerator("gpu", devices, nodes)


@pytest.mark.parametrize("accelerator", ["auto", "cpu", "tpu"])
def test_other_accelerators_are_lightnings(accelerator):
    assert available_accelerator(accelerator, 2, 1) == {}


@pytest.mark.parametrize("instructions", ["_is_avx512_bf16_supported", "_is_amx_tile_supported"])
@pytest.mark.parametrize("accelerator", ["auto", "cpu", "gpu", "cuda", "mps"])
def test_without_gpus_the_cpu_says_whether_bf16_is_quick(monkeypatch, accelerator, instructions):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert not multiplies_bf16(accelerator)
    monkeypatch.setattr(torch.cpu, instructions, lambda: True)
    assert multiplies_bf16(accelerator)


def test_a_gpu_says_itself_whether_bf16_is_quick(monkeypatch):
    """A T4 computes bf16 by other instructions, and a Mac's GPU does from macOS 14 on."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for supported in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, s=supported: s)
        assert [multiplies_bf16(name) for name in ("auto", "gpu", "cuda", "cpu")] == [supported] * 3 + [False]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for recent in (True, False):
        monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *version, r=recent: r)
        assert [multiplies_bf16(name) for name in ("auto", "mps", "cuda", "tpu")] == [recent] * 2 + [
            False,
            True,
        ]


def test_a_run_that_asks_for_a_gpu_trains(tmp_path, model_folder):
    with pytest.warns(UserWarning, match="trainer.accelerator cuda is not there"):
        lgym("fit", tmp_path, model_folder, trainer__accelerator="cuda", trainer__max_epochs=1)
    assert checkpoint(tmp_path)["epoch"] == 0
    assert (
        "accelerator: cuda" in (tmp_path / "version_0" / "config.yaml").read_text()
    )  # for a machine with one


def test_several_gpus_may_be_looked_at_on_one_cpu(tmp_path, model_folder, capsys):
    """`check` takes one device whatever the YAML says."""
    several = {"trainer__accelerator": "gpu", "trainer__devices": 8}
    with pytest.warns(UserWarning, match="trainer.accelerator gpu is not there"):
        lgym("check", tmp_path, model_folder, random_episodes=2, **several)
    with pytest.raises(SystemExit):
        lgym("fit", tmp_path, model_folder, **several)
    assert "asks for 8 GPUs" in capsys.readouterr().err


def test_a_loop_of_ones_own_falls_back(model_folder):
    with pytest.warns(UserWarning, match="device cuda:0 is not there"):
        model, tokenizer = load_model_and_tokenizer(str(model_folder), device="cuda:0")
    with pytest.warns(UserWarning, match="device cuda is not there"):
        llm = wrap_pretrained(model, tokenizer, LoraSettings(r=2), device="cuda")
    assert llm.device == torch.device("cpu")


def test_quantization_runs_on_the_cpu(model_folder):
    with pytest.warns(UserWarning, match="device cuda is not there"):
        model, tokenizer = load_model_and_tokenizer(str(model_folder), quantization="8bit", device="cuda")
    assert wrap_pretrained(model, tokenizer, LoraSettings(r=2), device="cpu").device == torch.device("cpu")
    assert {type(m).__name__ for m in model.modules()} >= {"Linear8bitLt"}


def test_quantization_without_bitsandbytes(model_folder, monkeypatch):
    """An old one too: transformers takes those that can quantize on a CPU."""
    monkeypatch.setattr(build_module, "is_bitsandbytes_available", lambda: False)
    with pytest.raises(ConfigError, match=r"quantization: 8bit needs bitsandbytes [\d.]+ or newer"):
        load_model_and_tokenizer(str(model_folder), quantization="8bit")
