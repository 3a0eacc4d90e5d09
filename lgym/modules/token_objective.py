"""The loss of a minibatch: the policy's, token by token, and the value's.

    L_policy-part = 1/turns * sum over turns of  sum over its tokens of
                    (L_clip - entropy_coef * H + old_kl_coef * KL(old || pi) + kl_coef * KL(pi || ref)) /
                    divisor
    L_value-part  = value_coef / turns * sum over turns of  mean over its targets of  (V - R)^2 / 2

A choice between candidates is one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lgym.batch import PolicyOutput, ResponseBatch
from lgym.functional import (
    clip_fraction,
    clipped_value_loss,
    kl_estimate,
    kl_k3,
    masked_mean,
    policy_gradient_loss,
    ppo_clip_loss,
    value_loss,
)
from lgym.modules.configs import CriticConfig, LossConfig


@dataclass(frozen=True)
class TokenTerms:
    """The terms of the policy's loss, each [B, T]."""

    policy: Tensor
    entropy: Tensor
    old_kl: Tensor
    ref_kl: Tensor | None
    metrics: dict[str, Tensor]


def token_terms(config: LossConfig, batch: ResponseBatch, output: PolicyOutput) -> TokenTerms:
    """The terms of the policy's loss, with their means over the chosen tokens."""
    mask, logprobs = batch.action_mask, output.logprobs
    old_logprobs, advantages = batch.old_logprobs.to(logprobs.dtype), batch.advantages.to(logprobs.dtype)
    metrics = {}
    if config.clip_low is None or config.clip_high is None:
        policy = policy_gradient_loss(logprobs, advantages)
    else:
        clips = {"clip_low": config.clip_low, "clip_high": config.clip_high}
        policy = ppo_clip_loss(logprobs, old_logprobs, advantages, **clips)
        metrics["policy/clip_fraction"] = masked_mean(clip_fraction(logprobs, old_logprobs, **clips), mask)
    ref_kl = output.ref_kl
    if ref_kl is None and batch.ref_logprobs is not None:
        ref_kl = kl_estimate(logprobs, batch.ref_logprobs.to(logprobs.dtype), estimator=config.kl_estimator)
    if ref_kl is not None:
        metrics["policy/ref_kl"] = masked_mean(ref_kl, mask)
    metrics |= {"loss/policy": masked_mean(policy, mask), "policy/entropy": masked_mean(output.entropy, mask)}
    return TokenTerms(policy, output.entropy, behavior_kl(batch, output), ref_kl, metrics)


def behavior_kl(batch: ResponseBatch, output: PolicyOutput) -> Tensor:
    """[B, T] KL(behavior policy || policy): exact where it is known, else its k3 estimate."""
    if output.old_kl is not None:
        return output.old_kl
    return kl_k3(batch.old_logprobs.to(output.logprobs.dtype), output.logprobs)


def term_weights(
    config: LossConfig, critic: CriticConfig, *, warming_up: bool, braked: bool
) -> dict[str, float]:
    """The weights of the policy's terms.

    While the value warms up, the divergence alone holds the policy where it is; where a step is braked, the
    divergences alone pull it back.
    """
    if warming_up:
        return {} if critic.detach_value else {"old_kl": 1.0}
    divergences = {"old_kl": config.old_kl_coef, "ref_kl": config.kl_coef}
    return divergences if braked else {**divergences, "policy": 1.0, "entropy": -config.entropy_coef}


def policy_objective(
    config: LossConfig,
    batch: ResponseBatch,
    terms: TokenTerms,
    weights: Mapping[str, float],
    max_new_tokens: int,
) -> Tensor | float:
    """The policy's part of the loss.

    Args:
        config: its settings.
        batch: the minibatch.
        terms: its terms.
        weights: of the terms, by name; those without a weight are left out.
        max_new_tokens: the longest response of the policy.

    Returns:
        A scalar; 0.0 where no term is left.
    """
    mask = batch.action_mask
    divisors: dict[str, Tensor | float] = {
        "sequence_mean": mask.sum(1, keepdim=True).clamp(min=1),
        "token_mean": batch.mean_tokens,
        "max_length": max_new_tokens,
    }
    parts: list[Tensor] = [
        weight * getattr(terms, name) for name, weight in weights.items() if getattr(terms, name) is not None
    ]
    if not parts:
        return 0.0
    return ((sum(parts[1:], parts[0]) * mask) / divisors[config.loss_aggregation]).sum() * batch.loss_scale


def value_objective(
    config: CriticConfig, batch: ResponseBatch, output: PolicyOutput, reward_scale: float
) -> tuple[Tensor, Tensor]:
    """The value's part of the loss, and the mean squared error, in rewards squared, over turns or tokens.

    Every turn counts the same, however long its response.
    """
    assert batch.returns is not None
    width = batch.returns.shape[1]
    values = output.values[:, :width]
    returns = batch.returns.to(values.dtype)
    if config.value_clip is None or batch.old_values is None:
        losses = value_loss(values, returns)
    else:
        losses = clipped_value_loss(
            values, batch.old_values.to(values.dtype), returns, clip=config.value_clip
        )
    mask = batch.action_mask if width > 1 else torch.ones_like(batch.action_mask[:, :1])
    weighted = config.value_coef * reward_scale**2 * losses * mask / mask.sum(1, keepdim=True).clamp(min=1)
    return weighted.sum() * batch.loss_scale, masked_mean(losses, mask)
