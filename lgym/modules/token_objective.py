"""The loss of a minibatch: the policy's, token by token, and the value's.

    L_policy-part = 1/turns * sum over turns of  sum over its tokens of
                    (L_clip - entropy_coef * H + old_kl_coef * KL(old || pi) + kl_coef * KL(pi || ref)) /
                    divisor
    L_value-part  = value_coef / turns * sum over turns of  mean over its targets of  ((V - R) / std)^2 / 2

A choice between candidates is one token; std is the standard deviation of returns
(`lgym.models.value_head`).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from lgym.batch import PolicyOutput, ResponseBatch
from lgym.functional import clipped_value_loss, kl_estimate, kl_k2, kl_k3, masked_mean, value_loss
from lgym.modules.configs import CriticConfig, LossConfig


def divergences(config: LossConfig, batch: ResponseBatch, output: PolicyOutput) -> dict[str, Tensor]:
    """[B, T] `old_kl`, from the behavior policy, and `ref_kl`, from the reference where a loss wants it."""
    kls = {"old_kl": _behavior_kl_loss(config, batch, output)}
    if output.ref_kl is not None:
        kls["ref_kl"] = output.ref_kl
    elif batch.ref_logprobs is not None:
        reference = batch.ref_logprobs.to(output.logprobs.dtype)
        kls["ref_kl"] = kl_estimate(output.logprobs, reference, estimator=config.ref_kl_estimator)
    return kls


def behavior_kl(batch: ResponseBatch, output: PolicyOutput) -> Tensor:
    """[B, T] KL(behavior policy || policy): exact where it is known, else its k3 estimate."""
    if output.old_kl is not None:
        return output.old_kl
    return kl_k3(batch.old_logprobs.to(output.logprobs.dtype), output.logprobs)


def _behavior_kl_loss(config: LossConfig, batch: ResponseBatch, output: PolicyOutput) -> Tensor:
    """[B, T] `behavior_kl` as it is learned from, growing as `old_kl_target` says.

    Of sampled tokens the k2 estimate: near the behavior policy its gradient is that of k3, whose own is the
    ratio of probabilities less 1, so that a rare token that has become a thousand times as likely would
    outweigh all others. One sample does not tell how far the policy is either, so that there the minibatch's
    mean decides how the weight grows.
    """
    if output.old_kl is not None:
        kl = distance = output.old_kl
    else:
        kl = kl_k2(batch.old_logprobs.to(output.logprobs.dtype), output.logprobs)
        distance = masked_mean(kl.detach(), batch.action_mask)
    return kl if config.old_kl_target is None else kl * (1 + distance / config.old_kl_target)


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
    terms: Mapping[str, Tensor],
    weights: Mapping[str, float],
    max_new_tokens: int,
) -> Tensor:
    """The policy's part of the loss.

    Args:
        config: its settings.
        batch: the minibatch.
        terms: its terms, each [B, T], by name.
        weights: of the terms, by name; those without a weight are left out.
        max_new_tokens: the longest response of the policy; 0 where it writes nothing: a choice is one token.

    Returns:
        A scalar.
    """
    mask = batch.action_mask
    divisors: dict[str, Tensor | float] = {
        "sequence_mean": mask.sum(1, keepdim=True).clamp(min=1),
        "token_mean": batch.mean_tokens,
        "max_length": max(1, max_new_tokens),
    }
    weighted = [weight * terms[name] for name, weight in weights.items() if name in terms]
    total = sum(weighted, torch.zeros(mask.shape, device=mask.device))
    return weighted_sum(batch, total * mask / divisors[config.loss_aggregation]) * batch.loss_scale


def weighted_sum(batch: ResponseBatch, losses: Tensor) -> Tensor:
    """The sum of [B, ...] losses over turns, by their weights."""
    return losses.sum() if batch.turn_weights is None else (losses.sum(1) * batch.turn_weights).sum()


def value_objective(
    config: CriticConfig, batch: ResponseBatch, output: PolicyOutput, std: Tensor
) -> tuple[Tensor, Tensor]:
    """The value's part of the loss, and its mean over turns or tokens, in standard deviations squared.

    Every turn counts the same, however long its response.

    Args:
        config: the critic's settings.
        batch: the minibatch, with returns in rewards.
        output: of the policy, with values in rewards.
        std: [] of the returns.
    """
    assert batch.returns is not None
    width = batch.returns.shape[1]
    values = output.values[:, :width] / std
    returns = batch.returns.to(values.dtype) / std
    if config.value_clip is None or batch.old_values is None:
        losses = value_loss(values, returns)
    else:
        losses = clipped_value_loss(
            values, batch.old_values.to(values.dtype) / std, returns, clip=config.value_clip
        )
    mask = batch.action_mask if width > 1 else torch.ones_like(batch.action_mask[:, :1])
    weighted = config.value_coef * losses * mask / mask.sum(1, keepdim=True).clamp(min=1)
    return weighted_sum(batch, weighted) * batch.loss_scale, masked_mean(losses, mask)
