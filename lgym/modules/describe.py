"""What a rollout was like, as numbers to look at."""

from __future__ import annotations

from lgym.batch import Rollout
from lgym.modules.variety import variety


def describe(rollout: Rollout) -> dict[str, float]:
    """Metrics of any rollout; returns and lengths only where an episode ended."""
    metrics = {
        "rollout/turns": float(rollout.mask.sum()),
        "rollout/distinct_contexts": float(len(rollout.contexts)),
        "rollout/play_seconds": rollout.play_seconds,
        "rollout/episodes": float(len(rollout.episode_returns)),
        "rollout/episodes_dropped": float(rollout.episodes_dropped),
        "rollout/observations_shortened": float(_shortened(rollout)),
    }
    if len(rollout.episode_returns):
        metrics["rollout/return_mean"] = float(rollout.episode_returns.mean())
        metrics["rollout/return_std"] = float(rollout.episode_returns.std(correction=0))
        metrics["rollout/length_mean"] = float(rollout.episode_lengths.mean())
    if rollout.replies:
        if len(rollout.episode_returns):
            metrics["rollout/penalty_mean"] = float(rollout.episode_penalties.mean())
        metrics["rollout/parse_rate"] = float(rollout.parsed[rollout.mask].float().mean())
        metrics["rollout/truncated_rate"] = sum(not reply.ended for reply in rollout.replies) / len(rollout.replies)
        metrics["rollout/response_length"] = sum(len(reply.ids) for reply in rollout.replies) / len(rollout.replies)
    return metrics | variety(rollout)


def _shortened(rollout: Rollout) -> int:
    """How many turns' observations the model did not read whole."""
    rows = rollout.context_ids[rollout.mask].tolist()
    return sum(rollout.contexts[row].shortened for row in rows)
