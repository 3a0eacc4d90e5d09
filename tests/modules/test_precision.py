"""Precisions and quantization: trained weights stay in fp32, and rollout and training agree."""

from __future__ import annotations

import math

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from helpers import tiny
from helpers.echo import ForgivingEchoAgent
from helpers.training import fit, tiny_config
from lgym.models import LoraSettings
from lgym.modules import PPO, CriticConfig, LossConfig
from lgym.modules.checkpointing import trained_state
from lgym.policies import CandidatePolicy, GenerationPolicy, ThinkPolicy

POLICIES = {
    "candidates": CandidatePolicy,
    "generation": lambda: GenerationPolicy(max_new_tokens=3),
    "think": lambda: ThinkPolicy(max_reasoning_tokens=3),
}
CONVERSATION = {
    "agent": ForgivingEchoAgent(),
    "env_kwargs": {"turns": 3},
    "episodes_per_rollout": 8,
    "num_envs": 4,
    "update_epochs": 2,
}


@pytest.mark.parametrize("history", ["full", pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("precision", "lora", "gap"),
    [
        ("32-true", True, 1e-4),
        ("bf16-true", True, 0.3),
        ("bf16-mixed", True, 0.3),
        ("bf16-mixed", False, 0.3),
    ],
)
def test_a_run_in_each_precision(tmp_path, model_folder, precision, lora, gap, policy, history):
    """Another precision at rollout time than in training, or rounded log-probabilities, show in the gap.
    Under autocast keys come in fp32 and values in bf16, and some sums in bf16: they did not fit together."""
    llm = tiny_config(model_folder, lora=LoraSettings(r=4) if lora else None)
    loss = LossConfig(entropy_coef=0.01)
    module = PPO(llm=llm, policy=POLICIES[policy](), loss=loss, critic=CriticConfig())
    trainer = {"max_epochs": 1, "precision": precision}
    curves = fit(module, tmp_path, data={**CONVERSATION, "history": history}, trainer=trainer)
    assert max(curves["policy/logprob_diff_max"]) < gap
    assert math.isfinite(curves["loss/total"][-1])
    state = trained_state(module, module.state_dict())
    assert {tensor.dtype for tensor in state.values() if tensor.is_floating_point()} == {torch.float32}


def test_an_overflow_in_fp16_is_left_to_the_scaler(tmp_path, model_folder):
    """Its first steps overflow until it has found its scale: that ended the run with "lower learning
    rate"."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, backoff_factor=2.0**-6, growth_interval=10_000)
    module = PPO(llm=tiny_config(model_folder), critic=CriticConfig())
    trainer = {"max_epochs": 3, "plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
    curves = fit(module, tmp_path, data={"minibatch_size": 1}, trainer=trainer)
    assert scaler.get_scale() < 2.0**60
    assert curves["optim/steps"][-1] > 0
    assert any("lora_B" in name and bool(p.any()) for name, p in module.named_parameters())


def test_a_skipped_minibatch_keeps_what_a_scaler_has_accumulated(tmp_path, model_folder):
    """Without a loss in the last minibatch the scaler takes no step, and the gradients of those before it were
    dropped."""

    class SkipsTheLast(PPO):
        def loss(self, batch):
            return (None, {}) if self.trainer.is_last_batch else super().loss(batch)

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    module = SkipsTheLast(llm=tiny_config(model_folder), critic=CriticConfig())
    data = {"minibatch_size": 1, "update_epochs": 1}  # of three prompts
    plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
    trainer = {"max_epochs": 1, "accumulate_grad_batches": 3, "plugins": plugins}
    assert fit(module, tmp_path, data=data, trainer=trainer)["optim/steps"] == [1]
    assert any("lora_B" in name and bool(p.any()) for name, p in module.named_parameters())


def test_a_scaler_leaves_alone_what_a_minibatch_does_not_learn(tmp_path, model_folder):
    """With a gradient of 0 in place of none, Adam would move the adapters by its momentum while the value warms
    up."""
    learned = []

    class Watched(PPO):
        def on_before_optimizer_step(self, optimizer):
            learned.append({name for name, p in self.named_parameters() if p.grad is not None})
            super().on_before_optimizer_step(optimizer)

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    critic = CriticConfig(value_warmup=1, detach_value=True)
    plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
    module = Watched(llm=tiny_config(model_folder), critic=critic)
    fit(module, tmp_path, data={}, trainer={"max_epochs": 1, "plugins": plugins})
    assert learned
    assert not any("lora" in name for names in learned for name in names)


@pytest.mark.parametrize("quantization", ["4bit", "8bit"])
def test_a_quantized_model_learns(tmp_path, model_folder, quantization):
    """bitsandbytes' layers under fp32 adapters, on the CPU too."""
    pytest.importorskip("bitsandbytes")
    module = PPO(llm=tiny_config(model_folder, quantization=quantization))
    fit(module, tmp_path, data={}, trainer={"precision": "bf16-true"})
    state = trained_state(module, module.state_dict())
    assert all("lora" in name or "value_head" in name for name in state)
    assert any("lora_B" in name and tensor.abs().max() > 0 for name, tensor in state.items())


def test_eight_bits_act_and_train_alike():
    """On a CPU bitsandbytes multiplies otherwise while a layer trains: log-probabilities differed by 0.33
    with SmolLM2."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    llm = tiny.llm()
    llm.quantized = torch.nn.Sequential(
        bitsandbytes.nn.Linear8bitLt(64, 64, has_fp16_weights=False, threshold=6.0)
    )
    x = 4 * torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    outputs = []
    for training in (True, False):
        llm.train(training)
        assert llm.model.training is training
        outputs.append(llm.quantized(x))
    assert torch.equal(*outputs)
