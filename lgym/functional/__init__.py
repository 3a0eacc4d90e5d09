"""Pure functions of tensors: no state, no classes, no model, each with its formula and paper.

    masking           masked means, deviations and whitening
    logprobs          scores -> log-probabilities of candidates
    returns, gae      rewards and values -> returns and advantages
    group_advantages  returns of episodes from one reset seed, or of turns from one state -> advantages
    exploration       counts of visits -> a bonus per visit
    policy_losses     log-probabilities and advantages -> a loss per entry
    q_learning        log-probabilities and values -> values of actions, and their targets
    value_losses      values and returns -> a loss per entry
    value_offset      rewards and values -> the level by which all values miss
    kl                divergences, their one-sample estimators, entropy
    reliability       advantages of two halves of the episodes -> the share that is not chance
    confidence        half the widths of 95 % intervals
    aggregates        scores of several runs -> one figure and its interval
    truncation        top_k and top_p of a distribution over tokens
    diagnostics       metrics, never to train on
    inputs            checks of the inputs of all of them

Losses come back per entry, not reduced: which entries count, and what to divide by, is for the caller to
decide. The sizes in brackets are those of the legend in `lgym/batch.py`. Results keep their inputs'
precision, or raise it to float32 where the docstring says so; none depends on torch's default dtype, which a
trainer may change during a step.
"""

from lgym.functional.aggregates import bootstrap_interval, interquartile_mean
from lgym.functional.confidence import mean_margin, wilson_margin
from lgym.functional.diagnostics import (
    action_information,
    clip_fraction,
    explained_variance,
    variance_within_and_across,
)
from lgym.functional.exploration import count_novelty
from lgym.functional.gae import gae
from lgym.functional.group_advantages import group_advantages, leave_one_out_advantages, state_advantages
from lgym.functional.kl import categorical_entropy, categorical_kl, kl_estimate, kl_k1, kl_k2, kl_k3
from lgym.functional.logprobs import candidate_logprobs
from lgym.functional.masking import masked_deviations, masked_mean, whiten
from lgym.functional.policy_losses import ppo_clip_loss, surrogate_loss
from lgym.functional.q_learning import (
    conservative_penalty,
    distillation_loss,
    double_q_targets,
    expected_value,
    expectile_loss,
    graph_backup,
    huber_loss,
    mean_by_pair,
    prior_action_values,
)
from lgym.functional.reliability import split_half_reliability
from lgym.functional.returns import discounted_returns, n_step_returns
from lgym.functional.truncation import truncate_logits
from lgym.functional.value_losses import clipped_value_loss, value_loss
from lgym.functional.value_offset import value_offset

__all__ = [
    "bootstrap_interval",
    "interquartile_mean",
    "action_information",
    "candidate_logprobs",
    "categorical_entropy",
    "categorical_kl",
    "clip_fraction",
    "clipped_value_loss",
    "conservative_penalty",
    "count_novelty",
    "discounted_returns",
    "distillation_loss",
    "double_q_targets",
    "expected_value",
    "expectile_loss",
    "explained_variance",
    "gae",
    "graph_backup",
    "group_advantages",
    "huber_loss",
    "mean_by_pair",
    "kl_estimate",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "leave_one_out_advantages",
    "masked_deviations",
    "masked_mean",
    "mean_margin",
    "n_step_returns",
    "ppo_clip_loss",
    "prior_action_values",
    "split_half_reliability",
    "state_advantages",
    "surrogate_loss",
    "truncate_logits",
    "value_loss",
    "value_offset",
    "variance_within_and_across",
    "whiten",
    "wilson_margin",
]
