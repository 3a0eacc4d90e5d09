"""What values are taught, and in which units, by hand, on the rollout of `test_grpo`.

Stream 0: an episode of two turns that are paid 1 and 2, then one of a turn that is paid 0.5. Stream 1: 0 and 1, then 0.5.
The values: 1 at 'red', 2 at 'green' and 3 at 'a long way round', which are met in the order 0, 1, 2 and 0, 2, 2.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lgym.modules import A2C, PPO, TextPPO
from modules import test_ppo
from modules.test_grpo import REPLIES, rollout
from modules.test_text_algorithms import learner

VALUES = {"context_values": torch.tensor([1.0, 2.0, 3.0]), "next_values": torch.tensor([[2.0, 0.0, 0.0], [3.0, 0.0, 0.0]])}
PLAIN = {"gamma": 0.5, "whiten_advantages": False}


def credit(module) -> tuple[list[float], list[float]]:
    """The advantage of each reply and the return that its value learns, in the order of `REPLIES`."""
    batch = module.prepare(rollout(**VALUES))
    advantages = {reply: float(own[0]) for reply, own in zip(batch.replies, batch.advantages, strict=True)}
    returns = {reply: float(own[0]) for reply, own in zip(batch.replies, batch.returns, strict=True)}
    return [advantages[reply] for reply in REPLIES], [returns[reply] for reply in REPLIES]


@pytest.mark.parametrize("algorithm", [A2C, TextPPO])
@pytest.mark.parametrize(
    ("gae_lambda", "returns"),
    [
        # 1 + 0.5 * 2 = 2, 2; 0 + 0.5 * 1 = 0.5, 1; 0.5, 0.5
        (1.0, [2.0, 2.0, 0.5, 1.0, 0.5, 0.5]),
        # the next value in place of what came: 1 + 0.5 * 2 = 2, 2; 0 + 0.5 * 3 = 1.5, 1; 0.5, 0.5
        (0.0, [2.0, 2.0, 1.5, 1.0, 0.5, 0.5]),
    ],
)
def test_values_learn_returns(algorithm, gae_lambda, returns):
    """Catches a value that learns the turn's reward (1, 2, 0, 1, 0.5, 0.5) or its advantage in place of its return."""
    advantages, found = credit(learner(algorithm, gae_lambda=gae_lambda, **PLAIN))
    assert found == pytest.approx(returns, abs=1e-6)
    before = [1.0, 2.0, 1.0, 3.0, 3.0, 3.0]  # the value of each turn's state
    assert advantages == pytest.approx([own - value for own, value in zip(returns, before, strict=True)], abs=1e-6)


@pytest.mark.parametrize("algorithm", [A2C, TextPPO])
def test_the_reward_scale_reaches_advantages_and_values(algorithm):
    """Catches a scale that is taken and ignored, and one of values that people read: returns stay 2, 2, 0.5, 1, 0.5, 0.5,
    and advantages are a tenth of what they are above the values."""
    advantages, returns = credit(learner(algorithm, gae_lambda=1.0, reward_scale=0.1, **PLAIN))
    assert returns == pytest.approx([2.0, 2.0, 0.5, 1.0, 0.5, 0.5], abs=1e-6)
    assert advantages == pytest.approx([0.1 * a for a in (2 - 1, 2 - 2, 0.5 - 1, 1 - 3, 0.5 - 3, 0.5 - 3)], abs=1e-6)


def test_the_reward_scale_reaches_tokens():
    """Catches the same where tokens have credit of their own: with lambda 1, each token of an episode's last turn has what
    that turn pays (2, 1, 0.5 and 0.5) as its return, and a tenth of that less its value as its advantage."""
    module = learner(TextPPO, credit="token", gamma=0.5, gae_lambda=1.0, reward_scale=0.1, whiten_advantages=False)
    batch = module.prepare(rollout(**VALUES))
    for turn, paid in ((1, 2.0), (3, 1.0), (4, 0.5), (5, 0.5)):
        own = batch.replies.index(REPLIES[turn])
        assert batch.returns[own][batch.mask[own]].tolist() == pytest.approx([paid] * len(REPLIES[turn]), abs=1e-5)
        values = module.objective.recorded(batch).values[own][batch.mask[own]]
        assert batch.advantages[own][batch.mask[own]].tolist() == pytest.approx((0.1 * (paid - values)).tolist(), abs=1e-5)


def test_the_reward_scale_of_choices():
    """Catches the same in PPO: rewards still to come are 1, -1, 0, 2 and 2, in the order of contexts."""
    module = test_ppo.learner(gamma=1.0, gae_lambda=1.0, reward_scale=0.1, whiten_advantages=False)
    played = test_ppo.rollout(module)
    batch = module.prepare(played)
    assert batch.returns.tolist() == pytest.approx([1.0, -1.0, 0.0, 2.0, 2.0], abs=1e-6)
    assert batch.advantages.tolist() == pytest.approx((0.1 * (batch.returns - played.context_values[batch.rows])).tolist())


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize(("algorithm", "settings"), [(A2C, {}), (TextPPO, {}), (TextPPO, {"credit": "token"}), (PPO, {})])
def test_a_detached_value_leaves_the_language_model_alone(algorithm, settings, detached):
    """Catches `detach_value` ignored, or always on: without advantages, entropy and divergences only the value learns, and
    its gradient is in the adapters or not."""
    if algorithm is PPO:
        module = test_ppo.learner(detach_value=detached, entropy_coef=0.0, old_kl_coef=0.0, target_kl=None)
        batch = module.prepare(test_ppo.rollout(module))
    else:
        module = learner(algorithm, detach_value=detached, **settings)
        batch = module.prepare(rollout())
    loss = module.loss(replace(batch, advantages=torch.zeros_like(batch.advantages)))[0]
    loss.backward()
    moved = {name for name, p in module.named_parameters() if p.grad is not None and p.grad.any()}
    assert any("lora" in name for name in moved) != detached
    assert any("value_head" in name for name in moved)
