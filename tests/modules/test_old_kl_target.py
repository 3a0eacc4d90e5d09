"""The weight of the divergence from the behavior policy, which grows with it."""

from __future__ import annotations

import pytest
import torch

from helpers.rollouts import candidate_learner, candidate_rollout, shift
from lgym.modules import LossConfig
from lgym.types import ConfigError


def losses(**settings) -> tuple[float, float, float]:
    """Loss without the divergence, loss with it, and the mean divergence, of a policy that has moved."""
    values = []
    for coef in (0.0, 0.5):
        torch.manual_seed(0)  # the same adapters each time
        module = candidate_learner(old_kl_coef=coef, target_kl=None, **settings)
        batch = module.prepare(candidate_rollout(module))[0]
        batch = batch.where(batch.prompt_index == 0)  # of one prompt, so that the mean is every turn's
        loss, metrics = shift(module, 0.5).loss(batch)
        values.append(float(loss.detach()))
    return (*values, float(metrics["policy/old_kl"]))


def test_the_weight_doubles_at_the_target():
    """Catches a target that is ignored, or applied to the metric: 0.5 KL (1 + KL / target)."""
    without, constant, kl = losses(old_kl_target=None)
    assert kl > 0.005
    scale = (constant - without) / (0.5 * kl)  # a mean over one prompt's turns, on the loss's own scale
    _, doubled, same = losses(old_kl_target=kl)
    assert same == pytest.approx(kl, rel=1e-5)
    assert doubled - without == pytest.approx(2 * 0.5 * kl * scale, rel=1e-3)
    _, tripled, _ = losses(old_kl_target=kl / 2)
    assert tripled - without == pytest.approx(3 * 0.5 * kl * scale, rel=1e-3)


@pytest.mark.parametrize("target", [0.0, -1.0])
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(ConfigError, match="old_kl_target"):
        LossConfig(old_kl_target=target)
