"""Precisions and quantization: what is trained stays in fp32, and playing agrees with training."""

from __future__ import annotations

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from helpers import tiny
from helpers.echo import EchoAgent
from helpers.runs import checkpoint, lgym, scalars
from lgym.cli import default_precision
from lgym.data import RolloutDataModule
from lgym.models import LLMConfig, LoraSettings
from lgym.modules import PPO


@pytest.mark.parametrize(("precision", "gap"), [("32-true", 1e-4), ("bf16-true", 0.3), ("bf16-mixed", 0.3)])
def test_a_run_in_each_precision(tmp_path, model_folder, precision, gap):
    """Another precision in playing than in training, or rounded log-probabilities, show in the gap."""
    lgym("fit", tmp_path, model_folder, trainer__precision=precision, trainer__max_epochs=2)
    assert max(scalars(tmp_path)["policy/logprob_diff_max"].values()) < gap
    assert {tensor.dtype for tensor in checkpoint(tmp_path)["state_dict"].values()} == {torch.float32}


def test_an_overflow_in_fp16_is_left_to_the_scaler(tmp_path, model_folder):
    """Its first steps overflow until it has found its scale: that ended the run with "lower learning rate"."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, growth_interval=10_000)
    data = RolloutDataModule(env="Echo-v0", agent=EchoAgent(), num_envs=8, episodes_per_rollout=32, minibatch_size=1)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=30, limit_val_batches=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, default_root_dir=tmp_path, plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
    )  # fmt: skip
    llm = LLMConfig(model=str(model_folder), lora=LoraSettings(r=4), value_hidden_size=16)
    module = PPO(llm=llm, value_warmup=0)
    trainer.fit(module, data)
    assert scaler.get_scale() < 2.0**60
    assert trainer.callback_metrics["optim/steps"] > 0
    assert any("lora_B" in name and float(p.abs().max()) > 0 for name, p in module.named_parameters())


@pytest.mark.parametrize("quantization", ["4bit", "8bit"])
def test_a_quantized_model_learns(tmp_path, model_folder, quantization):
    """bitsandbytes' layers under fp32 adapters, on the CPU too."""
    pytest.importorskip("bitsandbytes")
    lgym(
        "fit", tmp_path, model_folder, trainer__precision="bf16-true", trainer__max_epochs=2,
        model__init_args__llm__quantization=quantization,
    )  # fmt: skip
    names = checkpoint(tmp_path)["state_dict"]
    assert all("lora" in name or "value_head" in name for name in names)
    assert any("lora_B" in name and tensor.abs().max() > 0 for name, tensor in names.items())


def test_eight_bits_play_and_train_alike():
    """On a CPU bitsandbytes multiplies otherwise while a layer trains: log-probabilities differed by 0.33 with SmolLM2."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    llm = tiny.llm()
    llm.quantized = torch.nn.Sequential(bitsandbytes.nn.Linear8bitLt(64, 64, has_fp16_weights=False, threshold=6.0))
    x = 4 * torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    answers = []
    for training in (True, False):
        llm.train(training)
        assert llm.model.training is training
        answers.append(llm.quantized(x))
    assert torch.equal(*answers)


@pytest.mark.parametrize(
    ("llm", "expected"),
    [
        (LLMConfig(model="smollm2-135m-instruct"), "bf16-true"),
        (LLMConfig(model="smollm2-135m-instruct", lora=None), "bf16-mixed"),
        (LLMConfig(model="gpt2"), "32-true"),
        (LLMConfig(model="someone/else"), "32-true"),
    ],
)
def test_precision_that_is_not_given_is_the_models(llm, expected):
    """A 135M model in fp32 runs at half the speed; whole weights in bf16 do not learn."""
    assert default_precision(llm) == expected
