"""Metrics of a rollout: returns, lengths, the diversity of actions and text, over all processes of a run."""

from collections import Counter
from collections.abc import Sequence

import torch

from lgym import distributed
from lgym.batch import ResponseBatch
from lgym.functional import (
    action_information,
    discounted_returns,
    split_half_reliability,
    variance_within_and_across,
)
from lgym.modules.response_batch import RolloutTurns
from lgym.rollout import Response, Rollout

COUNTS = {
    "rollout/turns",
    "rollout/total_turns",
    "rollout/unique_prompts",
    "rollout/episodes",
    "rollout/episodes_reported",
    "rollout/total_episodes",
    "rollout/episodes_dropped",
    "rollout/observations_shortened",
    "time/env_steps_per_second",
}
"""Metrics that add up over processes."""

PER_EPISODE = {
    "rollout/return_mean",
    "rollout/return_std",
    "rollout/length_mean",
    "rollout/bonus_mean",
    "rollout/penalty_mean",
    "rollout/success_rate",
    "rollout/frac_reward_zero_std",
}
"""Metrics whose mean over processes counts episodes; that of the others counts turns."""

LARGEST = {"time/rollout_seconds", "policy/logprob_diff_max"}


def rollout_metrics(turns: RolloutTurns) -> dict[str, float]:
    """Metrics of any rollout; returns and lengths only where an episode has ended."""
    rollout = turns.rollout
    mask = rollout.mask
    num_turns = float(mask.sum())
    metrics = {
        "rollout/turns": num_turns,
        "rollout/total_turns": float(rollout.total_turns),
        "rollout/unique_prompts": float(len(rollout.prompts)),
        "rollout/episodes": float(len(rollout.episode_returns)),
        "rollout/total_episodes": float(rollout.total_episodes),
        "rollout/episodes_dropped": float(rollout.episodes_dropped),
        "rollout/observations_shortened": float(sum(prompt.shortened for prompt in rollout.turn_prompts())),
        "time/rollout_seconds": rollout.seconds,
    }
    if rollout.seconds > 0:  # what was logged is not played
        metrics["time/env_steps_per_second"] = num_turns / rollout.seconds
    episodes = rollout.reported_episodes
    metrics["rollout/episodes_reported"] = float(len(episodes))
    if len(episodes):
        metrics["rollout/return_mean"] = float(episodes.returns.mean())
        metrics["rollout/return_std"] = float(episodes.returns.std(correction=0))
        metrics["rollout/length_mean"] = float(episodes.lengths.mean())
        if not bool(episodes.successes.isnan().all()):  # an episode of which nobody said so was none
            metrics["rollout/success_rate"] = float((episodes.successes == 1).double().mean())
    if rollout.bonuses is not None:
        metrics["rollout/bonus_mean"] = float(rollout.bonuses[mask].sum()) / len(turns.episode_returns)
    if turns.batch.by_prompt:
        return metrics | return_variances(rollout) | choice_diversity(turns)
    responses = rollout.turn_responses()
    if len(episodes):
        metrics["rollout/penalty_mean"] = float(episodes.penalties.mean())
    metrics["rollout/parse_rate"] = float(rollout.parsed[mask].float().mean())
    metrics["response/clipped_ratio"] = sum(not response.finished for response in responses) / len(responses)
    metrics["response/length_mean"] = sum(len(response.token_ids) for response in responses) / len(responses)
    return metrics | return_variances(rollout) | text_diversity(responses)


def return_variances(rollout: Rollout) -> dict[str, float]:
    """The variance of undiscounted returns to go, in reward squared, within turns of one prompt and across
    prompts.

    Episodes that the rollout's border cuts are left out, and nothing is known unless some prompt was met
    twice.
    """
    mask = rollout.mask
    whole = mask & ~torch.isin(rollout.episode_ids, rollout.episode_ids[rollout.cut])
    zeros = torch.zeros_like(rollout.rewards)
    returns = discounted_returns(rollout.rewards, zeros, rollout.terminated, rollout.truncated, gamma=1.0)
    within, across = variance_within_and_across(returns[whole], rollout.prompt_index[whole])
    if bool(within.isnan()):
        return {}
    return {"rollout/return_variance_within": float(within), "rollout/return_variance_across": float(across)}


def choice_diversity(turns: RolloutTurns) -> dict[str, float]:
    """The dominance of one action and the mutual information of states and actions, from known distributions.

    A candidate is an action by its text.
    """
    rollout, distributions = turns.rollout, turns.batch.old_candidate_logprobs
    assert distributions is not None
    numbers: dict[str, int] = {}
    actions = torch.zeros(distributions.shape, dtype=torch.int64)
    for row, prompt in zip(actions, rollout.prompts, strict=True):
        candidates = [numbers.setdefault(text, len(numbers)) for text in prompt.candidates]
        row[: len(candidates)] = torch.tensor(candidates)
    prompts, visits = rollout.prompt_index[rollout.mask].unique(return_counts=True)
    mean, information = action_information(distributions[prompts].double(), actions[prompts], visits.double())
    return {"rollout/dominant_action": float(mean.max()), "policy/action_state_mi": float(information)}


def advantage_reliability(turns: RolloutTurns, batch: ResponseBatch) -> dict[str, float]:
    """The share of a choice's advantages that is not chance, by two halves of the episodes.

    Args:
        turns: of the rollout.
        batch: the same, with advantages; of free text there are no actions to compare.
    """
    if not batch.by_prompt:
        return {}
    halves = turns.episode_index[turns.order] % 2
    share = split_half_reliability(batch.advantages[:, 0], batch.prompt_index, batch.choices, halves)
    return {"policy/advantage_reliability": float(share)}


def text_diversity(responses: Sequence[Response]) -> dict[str, float]:
    """The dominance of one action, which is the text that the agent read, and the repetition within
    responses."""
    actions = Counter(response.action_text for response in responses)
    texts = Counter(response.token_ids for response in responses)
    repeated = sum(count * repeated_ngrams(token_ids) for token_ids, count in texts.items())
    return {
        "rollout/dominant_action": max(actions.values()) / len(responses),
        "rollout/repetition": repeated / len(responses),
    }


def repeated_ngrams(ids: Sequence[int], n: int = 4) -> float:
    """The share of a text's n-grams that occurred before: 0 where all are new, near 1 in a loop.

    1 - |distinct n-grams| / |n-grams|

    "Neural Text Generation with Unlikelihood Training", Welleck et al. 2019, arXiv:1908.04319, seq-rep-n.
    0 for a text of fewer than n tokens. Raises ValueError where n is below 1.
    """
    if n < 1:
        raise ValueError(f"n must be 1 or more, got {n}")
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def reduce_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics over all processes: sums of counts, the largest of times and gaps, else the mean over episodes
    or turns.

    A metric that only some of them have is that of these.
    """
    processes = distributed.all_gather_object(metrics)
    if len(processes) == 1:
        return metrics
    names = dict.fromkeys(name for process in processes for name in process)
    return {name: _reduce(name, [process for process in processes if name in process]) for name in names}


def _reduce(name: str, processes: list[dict[str, float]]) -> float:
    values = [process[name] for process in processes]
    if name in COUNTS:
        return sum(values)
    if name in LARGEST:
        return max(values)
    weights = [
        process["rollout/episodes_reported" if name in PER_EPISODE else "rollout/turns"]
        for process in processes
    ]
    total = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return total / sum(weights) if sum(weights) else values[0]
