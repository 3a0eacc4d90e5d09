"""Which way round the tokens' divergences are taken: from the policy that played, and to the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lgym.modules import TextPPO, TokenLoss
from modules.test_grpo import rollout
from modules.test_text_algorithms import learner


def k3(d: torch.Tensor) -> torch.Tensor:
    return d.exp() - d - 1


def test_the_old_divergence_is_from_the_policy_that_played():
    """Catches KL(pi || pi_old) in place of KL(pi_old || pi), which lets an action's probability fall to 0 for nothing: of
    what the old policy sampled, k3 is exp(d) - d - 1 with d = log pi - log pi_old."""
    module = learner(TextPPO, loss=TokenLoss(normalise_by="tokens"), value_coef=0.0, gamma=1.0)
    batch = module.prepare(rollout())
    with torch.no_grad():
        new = module.policy.likelihoods(batch).logprobs
    d = (new - batch.old_logprobs)[batch.mask]
    expected = float(k3(d).mean())
    assert expected != pytest.approx(float(k3(-d).mean()), rel=0.1)
    losses = []
    for coef in (0.0, 0.4):
        module.objective.settings = TokenLoss(normalise_by="tokens", old_kl_coef=coef)
        loss, metrics = module.loss(batch)
        assert float(metrics["policy/approx_kl"]) == pytest.approx(expected, rel=1e-5)
        losses.append(float(loss.detach()))
    assert losses[1] - losses[0] == pytest.approx(0.4 * expected, rel=1e-5)


def test_the_reference_divergence_is_to_the_reference():
    """Catches KL(reference || pi) in place of KL(pi || reference): of what pi sampled, d = log reference - log pi."""
    module = learner(TextPPO, loss=TokenLoss(normalise_by="tokens", kl_coef=0.5), value_coef=0.0, gamma=1.0)
    batch = module.prepare(rollout())
    with torch.no_grad():
        new = module.policy.likelihoods(batch).logprobs
    expected = float(k3((batch.ref_logprobs - new)[batch.mask]).mean())
    loss, metrics = module.loss(batch)
    without, _ = module.loss(replace(batch, ref_logprobs=None))
    assert float(metrics["policy/ref_kl"]) == pytest.approx(expected, rel=1e-5)
    assert float((loss - without).detach()) == pytest.approx(0.5 * expected, rel=1e-4)
    assert expected != pytest.approx(float(k3((new - batch.ref_logprobs)[batch.mask]).mean()), rel=0.05)


def test_the_gap_is_of_the_first_minibatch():
    """Catches a gap that is not the largest difference from what was recorded at play, or that is measured again when the
    policy has moved."""
    module = learner(TextPPO, value_coef=0.0, gamma=1.0)
    batch = module.prepare(rollout())
    with torch.no_grad():
        new = module.policy.likelihoods(batch).logprobs
    expected = float((new - batch.old_logprobs)[batch.mask].abs().max())
    module.loss(batch)
    assert module.rollout_metrics["policy/logprob_diff_max"] == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    module.loss(batch)
    assert module.rollout_metrics["policy/logprob_diff_max"] == pytest.approx(expected, rel=1e-5)
