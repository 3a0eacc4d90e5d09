"""The actions of a collapse guard, for people to read."""

from collections.abc import Mapping, Sequence
from typing import Any

from lgym.callbacks.collapse_criteria import CollapseDetector

REPORT = "collapse_report.md"

TEMPLATE = """\
# Ended by the collapse guard after rollout {rollout}

The weights are those {origin}; `{monitor}` says which are best.

## What happened

{events}

## Its limits

| metric | a sign where | in the last rollout |
|---|---|---|
{limits}

## What to try

- A lower learning rate, or a schedule that begins low: `model.init_args.lr_scheduler`,
  lgym.modules.schedules.WarmupCosine.
- A term that holds the policy near the behavior policy: `loss.old_kl_coef`,
  `loss.target_kl`, `loss.clip_low` or `loss.kl_coef`.
- More episodes in a rollout, or fewer `data.update_epochs`: steps that follow chance less.
- PPO: `value_warmup`, so that states are told apart before actions are.
- A sign that is no fault here, such as one action that is right everywhere: set its limit to null.

The checkpoint and the adapter hold the weights that the guard went back to. `--ckpt_path last` goes on from
there, with the lowered learning rates, or with those that you give.
"""


def events_table(events: Sequence[Mapping[str, Any]]) -> str:
    """Markdown table of a guard's actions, a row per action."""
    rows = [f"| {event['rollout']} | {event['action']} | {'; '.join(event['signs'])} |" for event in events]
    return "\n".join(["| after rollout | the guard | because |", "|---|---|---|", *rows])


def origin_of(best: Mapping[str, Any], monitor: str) -> str:
    """The weights that a guard goes back to, in words."""
    score, rollout = best["score"], best["number"]
    if score is None:
        return (
            f"from after rollout {rollout}, before any evaluation" if rollout else "that the run began with"
        )
    return f"from after rollout {rollout} ({monitor} {score:+.4f})"


def report(
    events: Sequence[Mapping[str, Any]],
    detector: CollapseDetector,
    metrics: Mapping[str, float],
    origin: str,
    monitor: str,
) -> str:
    """The whole story of a run that was ended, as Markdown.

    Args:
        events: the guard's actions.
        detector: the criteria, and what is remembered.
        metrics: of the last rollout.
        origin: the weights that are left, in words.
        monitor: the metric that says which weights are best.
    """
    limits = []
    for criterion in detector.criteria:
        bound = criterion.bound(detector.highest.get(criterion.metric, 1.0))
        shown = f"{metrics[criterion.metric]:.4g}" if criterion.metric in metrics else ""
        limits.append(
            f"| `{criterion.metric}` | {'above' if criterion.above else 'below'} {bound:.4g} | {shown} |"
        )
    return TEMPLATE.format(
        rollout=events[-1]["rollout"],
        origin=origin,
        monitor=monitor,
        events=events_table(events),
        limits="\n".join(limits),
    )
