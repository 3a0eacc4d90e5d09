"""Numbers of a rollout over all processes of a run."""

from __future__ import annotations

from torch import Tensor

from lgym import ranks
from lgym.functional import explained_variance

COUNTS = {
    "rollout/turns",
    "rollout/distinct_contexts",
    "rollout/episodes",
    "rollout/episodes_dropped",
    "rollout/observations_shortened",
}
OF_EPISODES = {
    "rollout/return_mean",
    "rollout/return_std",
    "rollout/length_mean",
    "rollout/penalty_mean",
    "rollout/groups_without_signal",
}
LARGEST = {"rollout/play_seconds", "policy/logprob_gap"}


def pooled(metrics: dict[str, float]) -> dict[str, float]:
    """Counts added up, the largest of times and gaps, and of all else the mean over episodes or turns.

    A metric that only some of them have is that of these.
    """
    everyone = ranks.everyone(metrics)
    if len(everyone) == 1:
        return metrics
    names = dict.fromkeys(name for one in everyone for name in one)
    return {name: _pool(name, [one for one in everyone if name in one]) for name in names}


def _pool(name: str, having: list[dict[str, float]]) -> float:
    if name in COUNTS:
        return sum(one[name] for one in having)
    if name in LARGEST:
        return max(one[name] for one in having)
    weight = "rollout/episodes" if name in OF_EPISODES else "rollout/turns"
    total = sum(one[weight] for one in having)
    return sum(one[name] * one[weight] for one in having) / total if total else having[0][name]


def explained(values: Tensor, returns: Tensor) -> float:
    """How much of everyone's returns the values foretell."""
    return float(explained_variance(ranks.joined(values), ranks.joined(returns)))
