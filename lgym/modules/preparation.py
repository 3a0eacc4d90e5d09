"""From a rollout to the batch that an algorithm learns from."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from lgym.batch import PolicyOutput, ResponseBatch
from lgym.functional import kl_estimate
from lgym.modules.advantages import Advantages
from lgym.modules.configs import LossConfig
from lgym.modules.response_batch import RolloutTurns, response_batch, rollout_turns
from lgym.policies import LLMPolicy
from lgym.rollout import Rollout

RESPONSES_PER_PASS, TOKENS_PER_PASS = 128, 16_384
"""Distinct responses that a pass without gradient takes together, and their tokens with those of their
prompts."""


def turns_to_learn_from(
    rollout: Rollout, config: LossConfig, reference: Callable[[], AbstractContextManager[LLMPolicy]]
) -> RolloutTurns:
    """The turns of a rollout, with the reference's log-probabilities or their rewards minus the divergence
    from it."""
    batch, order = response_batch(rollout)
    penalties = None
    if config.kl_coef > 0:
        with reference() as policy:
            output = evaluate_batch(policy, batch)
        if config.kl_in == "reward":
            kl = kl_estimate(batch.old_logprobs, output.logprobs, estimator=config.ref_kl_estimator)
            penalties = config.kl_coef * (kl * batch.action_mask).sum(1)
        else:
            distributions = output.candidate_logprobs
            batch = replace(batch, ref_logprobs=output.logprobs, ref_candidate_logprobs=distributions)
    return rollout_turns(rollout, batch, order, penalties)


def with_advantages(turns: RolloutTurns, estimate: Advantages, config: LossConfig) -> ResponseBatch:
    """The batch with an estimate's columns, which are in the order of time.

    Where there is nothing to learn it is idle, unless the loss has something else to do.
    """

    def columns(x: Tensor) -> Tensor:
        return x.reshape(len(x), -1)[turns.order].float()

    batch = turns.batch
    return replace(
        batch,
        advantages=columns(estimate.advantages) * batch.action_mask,
        returns=None if estimate.returns is None else columns(estimate.returns),
        old_values=None if estimate.values is None else columns(estimate.values),
        idle=estimate.idle and config.entropy_coef == 0 and batch.ref_logprobs is None,
    )


def without_idle_turns(batch: ResponseBatch, config: LossConfig) -> ResponseBatch:
    """The batch without turns that have no gradient: those of advantage 0, where no other term has one."""
    other_terms = batch.returns is not None or batch.ref_logprobs is not None
    counts = (batch.advantages != 0).any(1)
    if other_terms or config.entropy_coef > 0 or config.old_kl_coef > 0 or not bool(counts.any()):
        return batch
    return batch.where(counts)


def evaluate_batch(policy: LLMPolicy, batch: ResponseBatch) -> PolicyOutput:
    """The policy's output for all turns of a batch, [B, T] on the CPU, in passes of bounded size."""
    longest = max(map(len, batch.response_ids)) + max(len(prompt.token_ids) for prompt in batch.prompts)
    size = max(1, min(RESPONSES_PER_PASS, TOKENS_PER_PASS // longest))
    whole = PolicyOutput(*(torch.zeros(batch.action_mask.shape, dtype=torch.float32) for _ in range(3)))
    known = batch.old_candidate_logprobs
    distributions = None if known is None else torch.full_like(known, -torch.inf)
    for rows in batch.split(size, range(len(batch.prompt_chains))):
        part = batch.select(rows, batch.loss_scale)
        output = policy.evaluate_actions(part.to(policy.llm.device))
        for name in ("logprobs", "entropy", "values"):
            column = getattr(output, name).float().cpu()
            getattr(whole, name)[rows, : column.shape[1]] = column
        if distributions is not None and output.candidate_logprobs is not None:
            own = output.candidate_logprobs.float().cpu()
            distributions[batch.prompt_index[rows], : own.shape[1]] = own[part.prompt_index]
    return replace(whole, candidate_logprobs=distributions)
