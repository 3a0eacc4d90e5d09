"""The loss of free text, term by term, against plain loops on `text_rollout`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.prompts import response_batch
from helpers.rollouts import (
    RESPONSE_IDS,
    TEXT_PROMPTS,
    candidate_learner,
    candidate_rollout,
    shift,
    text_learner,
    text_rollout,
)
from lgym.modules import A2C, GRPO, PPO, RLOO, CriticConfig
from lgym.rollout import Response


def evaluated(module, batch):
    with torch.no_grad():
        return module.policy.evaluate_actions(batch)


def k3(d: torch.Tensor) -> torch.Tensor:
    return d.exp() - d - 1


def k2_of(module, batch) -> float:
    """The divergence from the behavior policy as it is learned from: the mean of half the squared log-ratio."""
    log_ratio = evaluated(module, batch).logprobs - batch.old_logprobs
    return float(log_ratio[batch.action_mask].square().mean() / 2)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "max_length"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("repeated", [False, True])
def test_the_loss_is_that_of_a_plain_loop(aggregation, size, repeated):
    """Over all 6 turns (13 tokens), though two of them are left out; minibatches of a pass average to it.
    Where both episodes from seed 7 begin with response 0, one gaining by it and one losing, it is computed
    once and counts twice."""
    module = text_learner(GRPO, loss_aggregation=aggregation, clip_low=0.1, clip_high=0.3)
    changes = {"response_index": torch.tensor([[0, 1, 4], [0, 3, 5]])} if repeated else {}
    batch, _ = module.prepare(text_rollout(**changes))
    tokens = 11 if repeated else 13
    expected = 0.0
    rows = zip(
        batch.prompt_index.tolist(), batch.response_ids, batch.old_logprobs, batch.advantages, strict=True
    )
    for prompt, ids, old, advantages in rows:
        alone = response_batch(TEXT_PROMPTS, [prompt], [Response(ids, (0.0,) * len(ids), True)])
        ratio = (evaluated(module, alone).logprobs[0] - old[: len(ids)]).exp()
        losses = -torch.minimum(ratio * advantages[0], ratio.clamp(0.9, 1.3) * advantages[0])
        divisors = {"sequence_mean": 6 * len(ids), "token_mean": tokens, "max_length": 6 * 5}
        expected += float(losses.sum()) / divisors[aggregation]
    minibatches = list(batch.minibatches(size, [0, 1, 2]))
    assert len(minibatches) == -(-(3 if repeated else 4) // size)
    parts = [float(module.loss(part)[0].detach()) for part in minibatches]
    assert sum(parts) / len(parts) == pytest.approx(expected, rel=1e-5)


def test_a_choice_is_one_token_of_any_aggregation():
    """Catches a division by the limit of a policy that writes nothing, which is 0."""
    module, losses = candidate_learner(entropy_coef=0.1), []
    batch, _ = module.prepare(candidate_rollout(module))
    for aggregation in ("sequence_mean", "token_mean", "max_length"):
        module.loss_config = replace(module.loss_config, loss_aggregation=aggregation)
        losses.append(float(module.loss(batch)[0].detach()))
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "settings"), [(A2C, {}), (PPO, {}), (PPO, {"advantage_level": "token"})]
)
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_values_learn_returns_once_per_turn(algorithm, settings, aggregation):
    """At turn level the value before the turn learns, at token level that of every token; a turn counts once
    either way, however long its response and however the policy's loss is aggregated."""
    module = text_learner(algorithm, value_coef=3.0, loss_aggregation=aggregation, **settings)
    batch, _ = module.prepare(text_rollout())
    total, metrics = module.loss(batch)
    output = evaluated(module, batch)
    mask = batch.action_mask if settings else torch.ones(6, 1, dtype=torch.bool)
    width = mask.shape[1]
    assert batch.returns.shape == (6, 4 if settings else 1) == mask.shape
    std = batch.returns[mask].std(correction=0)  # the first returns decide it
    errors = ((output.values[:, :width] - batch.returns) / std).square() / 2
    assert float(metrics["loss/value"]) == pytest.approx(float(errors[mask].mean()), rel=1e-5)
    module.critic = CriticConfig(value_coef=0.0)
    expected = 3.0 * ((errors * mask).sum(1) / mask.sum(1)).mean()
    assert float((total - module.loss(batch)[0]).detach()) == pytest.approx(float(expected), rel=1e-5)
    total.backward()
    assert float(module.policy.llm.value_head.output.weight.grad.abs().sum()) > 0


def test_while_the_value_warms_up_the_policy_is_held():
    """The loss is then the divergence from the behavior policy and the value's error, whatever the advantages
    are; after it, `old_kl_coef` is that divergence's weight."""
    settings = {"value_coef": 3.0, "entropy_coef": 0.5, "loss_aggregation": "token_mean"}
    module = text_learner(PPO, value_warmup=2, detach_value=False, **settings)
    batch, _ = module.prepare(text_rollout())
    total, metrics = module.loss(batch)
    held = k2_of(module, batch) + 3.0 * float(metrics["loss/value"])
    assert float(total.detach()) == pytest.approx(held, rel=1e-6)
    assert float(metrics["policy/approx_kl"]) > 0.1
    module.critic = CriticConfig(value_coef=3.0)
    losses = {}
    for coef in (0.0, 0.4):
        module.loss_config = replace(module.loss_config, old_kl_coef=coef)
        total, metrics = module.loss(batch)
        losses[coef] = float(total.detach())
    assert losses[0.0] != pytest.approx(held, rel=1e-3)
    assert losses[0.4] - losses[0.0] == pytest.approx(0.4 * k2_of(module, batch), rel=1e-5)


def test_the_entropy_bonus_has_a_gradient():
    """At advantage 0 the loss is -entropy_coef times the mean entropy, and so is its gradient."""
    module = text_learner(PPO, entropy_coef=0.7, value_coef=0.0)
    batch, _ = module.prepare(text_rollout())
    batch.advantages.zero_()
    parameters = [p for name, p in module.named_parameters() if "lora" in name]
    total, _ = module.loss(batch)
    entropy = module.policy.evaluate_actions(batch, entropy_gradient=True).entropy
    expected = -0.7 * (entropy.sum(1) / batch.action_mask.sum(1)).mean()
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    gradients, plain = (
        torch.autograd.grad(loss, parameters, retain_graph=True) for loss in (total, expected)
    )
    assert sum(float(gradient.abs().sum()) for gradient in plain) > 0
    for gradient, other in zip(gradients, plain, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-8)


def test_the_old_divergence_is_from_the_behavior_policy():
    """Catches a metric of KL(pi || pi_old) in place of KL(pi_old || pi): of what the old policy sampled, k3 is
    exp(d) - d - 1 with d = log pi - log pi_old. The loss has k2."""
    module = text_learner(PPO, loss_aggregation="token_mean", value_coef=0.0, gamma=1.0)
    batch, _ = module.prepare(text_rollout())
    d = (evaluated(module, batch).logprobs - batch.old_logprobs)[batch.action_mask]
    expected = float(k3(d).mean())
    assert expected != pytest.approx(float(k3(-d).mean()), rel=0.1)
    losses = []
    for coef, target in ((0.0, None), (0.4, None), (0.4, k2_of(module, batch))):
        module.loss_config = replace(module.loss_config, old_kl_coef=coef, old_kl_target=target)
        loss, metrics = module.loss(batch)
        assert float(metrics["policy/approx_kl"]) == pytest.approx(expected, rel=1e-5)
        losses.append(float(loss.detach()))
    held = 0.4 * k2_of(module, batch)
    assert losses[1] - losses[0] == pytest.approx(held, rel=1e-5)
    assert losses[2] - losses[0] == pytest.approx(2 * held, rel=1e-5)  # doubled at the target


def test_a_token_that_became_likely_does_not_outweigh_the_others():
    """A token that has become e^8 times as likely: by k3, whose gradient is the ratio less 1, it pulled 3,000
    times as hard as one that is twice as likely, and a policy forgot in a rollout what it had been shown."""
    module = text_learner(PPO, loss_aggregation="token_mean", value_coef=0.0, gamma=1.0, old_kl_coef=0.1)
    batch, _ = module.prepare(text_rollout())
    batch.advantages.zero_()
    parameters = [p for name, p in module.named_parameters() if "lora" in name]
    gradients = []
    for difference in (0.7, 8.0):
        old = evaluated(module, batch).logprobs.clone()
        old[0, 0] -= difference
        total, _ = module.loss(replace(batch, old_logprobs=old))
        gradients.append(sum(float(g.norm()) for g in torch.autograd.grad(total, parameters)))
    assert gradients[1] / gradients[0] == pytest.approx(8.0 / 0.7, rel=1e-3)


def test_the_reference_divergence_is_to_the_reference():
    """Catches KL(reference || pi) in place of KL(pi || reference): of what pi sampled, d = log reference -
    log pi."""
    module = text_learner(PPO, loss_aggregation="token_mean", kl_coef=0.5, value_coef=0.0, gamma=1.0)
    batch, _ = module.prepare(text_rollout())
    new = evaluated(module, batch).logprobs
    expected = float(k3((batch.ref_logprobs - new)[batch.action_mask]).mean())
    loss, metrics = module.loss(batch)
    without, _ = module.loss(replace(batch, ref_logprobs=None))
    assert float(metrics["policy/ref_kl"]) == pytest.approx(expected, rel=1e-5)
    assert float((loss - without).detach()) == pytest.approx(0.5 * expected, rel=1e-4)
    assert expected != pytest.approx(
        float(k3((new - batch.ref_logprobs)[batch.action_mask]).mean()), rel=0.05
    )


@pytest.mark.parametrize("algorithm", [GRPO, RLOO])
def test_the_divergence_counts_turns_that_have_no_advantage(algorithm):
    """It holds the policy wherever it plays; turns of zero-variance groups were left out of it: 0.716 for
    0.940."""
    module = text_learner(algorithm, old_kl_coef=0.5, loss_aggregation="token_mean")
    batch, _ = module.prepare(text_rollout())
    assert len(batch) == 6
    without, _ = text_learner(algorithm).prepare(text_rollout())
    assert len(without) == 4
    total, metrics = module.loss(batch)
    kl = 0.5 * k2_of(module, batch)  # over all 6 turns
    assert float(total.detach()) == pytest.approx(float(metrics["loss/policy"]) + kl, rel=1e-6)


def test_the_largest_difference_of_logprobs_is_of_the_first_minibatch():
    """Catches one that is not the largest difference from rollout time, or that is measured when the policy
    has moved."""
    module = text_learner(PPO, value_coef=0.0, gamma=1.0)
    batch, _ = module.prepare(text_rollout())
    difference = (evaluated(module, batch).logprobs - batch.old_logprobs)[batch.action_mask]
    _, metrics = module.loss(replace(batch, metrics={}))
    assert float(metrics["policy/logprob_diff_max"]) == pytest.approx(float(difference.abs().max()), rel=1e-5)
    assert "policy/logprob_diff_max" not in shift(module, 0.1).loss(batch)[1]


def test_every_turn_of_an_episode_has_its_advantage():
    """3 and 1 are 1 above and below their mean; 0.5 and 0.5 teach nothing and are left out."""
    batch, metrics = text_learner(GRPO, scale_by_std=False).prepare(text_rollout())
    assert batch.prompt_index.tolist() == [0, 0, 1, 2]
    assert batch.response_ids == tuple(RESPONSE_IDS[i] for i in (0, 2, 1, 3))
    assert batch.advantages[:, 0].tolist() == [1.0, -1.0, 1.0, -1.0]
    assert torch.equal(batch.advantages != 0, batch.action_mask)
    assert batch.action_mask.sum(1).tolist() == [2, 4, 1, 3]
    assert metrics["rollout/frac_reward_zero_std"] == 0.5
    assert metrics["rollout/parse_rate"] == pytest.approx(5 / 6)
    assert metrics["response/clipped_ratio"] == pytest.approx(1 / 6)
    assert metrics["response/length_mean"] == pytest.approx(13 / 6)
