"""What is whitened, and what takes no step."""

from __future__ import annotations

import pytest
import torch
from lgym.modules.whitening import whitened

from helpers.runs import lgym, scalars
from modules.test_ppo import learner, rollout

NOTHING_PAID = torch.full((2, 3), -1.0)
GOING_ON = torch.tensor([[False, False, False], [False, False, True]])  # the last is idle


def test_where_nothing_is_told_nothing_is_whitened():
    """The errors of the value, on the scale of 1, drove a policy that was never paid into one action."""
    module = learner()
    played = rollout(module, rewards=NOTHING_PAID, terminated=GOING_ON)
    noise = torch.tensor([1e-3, -2e-3, 0.0, 1e-3, 5e-4])
    assert whitened(played, noise).tolist() == [0.0] * 5
    assert module.prepare(played).advantages.tolist() == [0.0] * 5


ANOTHER = torch.tensor([[-1.0, 0.0, -1.0], [-1.0, -1.0, 0.0]])
AN_END = torch.tensor([[False, True, False], [False, False, True]])


@pytest.mark.parametrize(
    ("rewards", "terminated"), [(ANOTHER, GOING_ON), (NOTHING_PAID, AN_END)], ids=["another reward", "an end"]
)
def test_another_reward_or_an_end_tells_something(rewards, terminated):
    """A pole that falls is told by the end alone: every push is paid the same."""
    played = rollout(learner(), rewards=rewards, terminated=terminated)
    advantages = torch.tensor([1.0, -2.0, 0.0, 1.0, 0.5])
    found = whitened(played, advantages)
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(found.std(correction=0)) == pytest.approx(1.0, abs=1e-5)


def test_a_gradient_of_zero_takes_no_step():
    """Momentum would go on moving a policy that learns nothing."""
    module = learner()
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
    assert module._steps == 0


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_the_only_step_of_a_rollout_is_measured_after_it(tmp_path, model_folder, algorithm):
    """Before it the divergence is 0, so that `max_kl` could not fire however far the step went."""
    lgym(
        "fit", tmp_path, model_folder, model=f"lgym.modules.{algorithm}", data__update_epochs=1, data__minibatch_size=1000,
        trainer__limit_val_batches=0, model__init_args__policy="lgym.policies.CandidatePolicy",
        model__init_args__optimizer="torch.optim.AdamW", model__init_args__optimizer__init_args__lr=0.05,
        **({"model__init_args__value_warmup": 0} if algorithm == "PPO" else {}),
    )  # fmt: skip
    told = scalars(tmp_path)
    assert list(told["optim/steps"].values()) == [1, 1]
    assert min(told["policy/approx_kl"].values()) > 1e-4
