"""Steps of the optimizer: gradient accumulation, counts per rollout, and gradients of zero."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

from helpers.rollouts import candidate_learner
from helpers.training import fit, tiny_config
from lgym.modules import A2C, PPO, CriticConfig, LossConfig
from lgym.modules.checkpointing import trained_state
from lgym.policies import CandidatePolicy


def ppo(model_folder, **settings) -> PPO:
    """Without a brake and warm-up."""
    loss = LossConfig(entropy_coef=0.01, old_kl_coef=0.3)
    return PPO(llm=tiny_config(model_folder), loss=loss, critic=CriticConfig(), **settings)


def test_accumulated_minibatches_are_one_large_one(tmp_path, model_folder):
    """Three minibatches of one prompt each, accumulated, take the step of one minibatch with all three, and
    log its loss, though they have turns of unequal numbers."""
    runs = {"whole": (3, 1), "parts": (1, 3), "steps": (1, 1)}
    weights, steps, losses = {}, {}, {}
    for name, (size, accumulated) in runs.items():
        module = ppo(model_folder, optimizer=partial(torch.optim.SGD, lr=0.1))
        trainer = {"max_epochs": 1, "accumulate_grad_batches": accumulated}
        curves = fit(module, tmp_path, data={"update_epochs": 1, "minibatch_size": size}, trainer=trainer)
        weights[name] = trained_state(module, module.state_dict())
        (steps[name],), (losses[name],) = curves["optim/steps"], curves["loss/total"]
    assert losses["parts"] == pytest.approx(losses["whole"], rel=1e-4)
    assert steps == {"whole": 1, "parts": 1, "steps": 3}
    for key, value in weights["whole"].items():
        torch.testing.assert_close(weights["parts"][key], value, rtol=1e-4, atol=1e-6)
    differ = [
        not torch.allclose(weights["steps"][key], value, rtol=1e-4, atol=1e-6)
        for key, value in weights["whole"].items()
    ]
    assert any(differ), "three steps of one prompt each are not one step: the comparison above could not fail"


def test_steps_are_counted_per_rollout(tmp_path, model_folder):
    """The run's total would grow from rollout to rollout: 3 minibatches of one prompt in two passes are 6
    steps each time."""
    data = {"update_epochs": 2, "minibatch_size": 1}
    assert fit(ppo(model_folder), tmp_path, data=data, trainer={"max_epochs": 3})["optim/steps"] == [6, 6, 6]


def test_a_gradient_of_zero_takes_no_step():
    """Momentum would go on moving a policy that learns nothing."""
    module = candidate_learner()
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    for p in trained:
        p.grad = torch.ones_like(p)
    optimizer.step()
    before = [p.detach().clone() for p in trained]
    for p in trained:
        p.grad = torch.zeros_like(p)
    module.on_before_optimizer_step(optimizer)
    optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(trained, before, strict=True))
    assert module.steps_taken == 0


@pytest.mark.parametrize("algorithm", [A2C, PPO])
def test_the_only_step_of_a_rollout_is_measured_after_it(tmp_path, model_folder, algorithm):
    """Before it the divergence is 0, so that a limit of it could not stop a run however far the step went."""
    optimizer = partial(torch.optim.AdamW, lr=0.05)
    llm = tiny_config(model_folder)
    module = algorithm(llm=llm, policy=CandidatePolicy(), optimizer=optimizer, critic=CriticConfig())
    curves = fit(module, tmp_path, data={"update_epochs": 1, "minibatch_size": 1000}, trainer={})
    assert curves["optim/steps"] == [1, 1]
    assert min(curves["policy/old_kl"]) > 1e-4


def test_the_time_of_each_rollout_is_told_by_what_it_was_spent_on(tmp_path, model_folder, monkeypatch):
    """Of every rollout its own, also of the first, which is played before anything is learned; an evaluation
    is no part of the update."""
    act = CandidatePolicy.act

    def slowly(self, *args, **kwargs):
        time.sleep(0.05)
        return act(self, *args, **kwargs)

    monkeypatch.setattr(CandidatePolicy, "act", slowly)
    trainer = {"max_epochs": 3, "limit_val_batches": 1.0}
    curves = fit(ppo(model_folder), tmp_path, data={"update_epochs": 1}, trainer=trainer)
    for played, policy in zip(curves["time/rollout_seconds"], curves["time/policy_seconds"], strict=True):
        assert 0.05 <= policy <= played
    for name in ("environment", "preparation", "update"):
        assert min(curves[f"time/{name}_seconds"]) > 0
    *between, last = curves["time/evaluation_seconds"]
    assert between == [0, 0]
    assert last >= 0.1  # greedy and sampled, once, at the end
