"""What `lgym check` times of learning."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

from helpers.rollouts import text_learner, text_rollout
from lgym.cli.check.learning_trial import _time_step
from lgym.modules import REINFORCE, SFTConfig


def test_the_step_is_of_the_algorithms_own_loss(monkeypatch):
    """Though the first rollout of the run only imitates, and the check has no turns to imitate."""
    module = text_learner(REINFORCE, sft=SFTConfig(rollouts=1), gamma=1.0)
    batch, _ = module.prepare(text_rollout())
    losses, loss = [], module.loss
    monkeypatch.setattr(module, "loss", lambda minibatch: losses.append(loss(minibatch)) or losses[-1])
    plugin = SimpleNamespace(forward_context=nullcontext)
    module._trainer = SimpleNamespace(precision_plugin=plugin, current_epoch=0)
    assert _time_step(module, batch) > 0
    assert losses[0][0].requires_grad
    assert module.sft.rollouts == 1
