"""How varied a rollout was: its rewards, its actions and its words. What collapses takes these along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from lgym.batch import Rollout
from lgym.functional import action_information, discounted_returns, variance_within_and_across


def variety(rollout: Rollout) -> dict[str, float]:
    """Metrics of any rollout; of rewards only where a context was met twice."""
    metrics = reward_variances(rollout)
    return metrics | (choice_variety(rollout) if rollout.candidate_logprobs is not None else reply_variety(rollout))


def reward_variances(rollout: Rollout) -> dict[str, float]:
    """Of what was still paid in an episode from each turn on, by the turn's context; undiscounted, in reward². Of episodes
    that the rollout's border cuts that is not known."""
    to_come = discounted_returns(
        rollout.rewards, torch.zeros_like(rollout.rewards), rollout.terminated, rollout.truncated, gamma=1.0
    )
    whole = rollout.mask & ~torch.isin(rollout.episode_ids, rollout.episode_ids[rollout.cut])
    within, across = variance_within_and_across(to_come[whole], rollout.context_ids[whole])
    if bool(within.isnan()):
        return {}
    return {"rollout/reward_variance_within": float(within), "rollout/reward_variance_across": float(across)}


def choice_variety(rollout: Rollout) -> dict[str, float]:
    """Of a policy whose distributions are known; a candidate is an action by its text."""
    assert rollout.candidate_logprobs is not None
    numbers: dict[str, int] = {}
    actions = torch.zeros(rollout.candidate_logprobs.shape, dtype=torch.int64)
    for row, context in zip(actions, rollout.contexts, strict=True):
        own = [numbers.setdefault(text, len(numbers)) for text in context.candidates]
        row[: len(own)] = torch.tensor(own)
    met = torch.bincount(rollout.context_ids[rollout.mask], minlength=len(rollout.contexts))
    mean, information = action_information(rollout.candidate_logprobs.double(), actions, met.double())
    return {"rollout/dominant_action": float(mean.max()), "rollout/action_information": float(information)}


def reply_variety(rollout: Rollout) -> dict[str, float]:
    """Of a policy that speaks: an action is the candidate that a reply came to, or else its whole text."""
    contexts = [rollout.contexts[row] for row in rollout.context_ids[rollout.mask].tolist()]
    replies = [rollout.replies[choice] for choice in rollout.choices[rollout.mask].tolist()]
    actions = Counter(
        reply.text if reply.choice < 0 else context.candidates[reply.choice]
        for context, reply in zip(contexts, replies, strict=True)
    )
    said = Counter(reply.ids for reply in replies)
    repeated = sum(count * repeated_ngrams(ids) for ids, count in said.items())
    return {
        "rollout/dominant_action": max(actions.values()) / len(replies),
        "rollout/repetition": repeated / len(replies),
    }


def repeated_ngrams(ids: Sequence[int], n: int = 4) -> float:
    """The share of a text's n-grams that have been there before: 0 where all are new, near 1 in a loop.

    1 - |distinct n-grams| / |n-grams|

    "Neural Text Generation with Unlikelihood Training", Welleck et al. 2019, arXiv:1908.04319, seq-rep-n.
    0 for a text of fewer than n tokens. Raises ValueError where n is below 1.
    """
    if n < 1:
        raise ValueError(f"n must be 1 or more, got {n}")
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
