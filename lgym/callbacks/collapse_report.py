"""What a collapse guard has done, for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lgym.callbacks.collapse_criteria import CollapseDetector

REPORT = "collapse_report.md"

ADVICE = """\
## What to try

- A lower learning rate, or a schedule that begins low: `model.init_args.lr_scheduler`, lgym.modules.schedules.WarmupCosine.
- What holds a policy near the one that played: PPO's `old_kl_coef`, `target_kl` and `clip_low`, the others' `loss.kl_coef`.
- More episodes in a rollout, or fewer `data.update_epochs`: steps that follow chance less.
- PPO: `value_warmup`, so that states are told apart before actions are.
- Where a sign is no fault here, as one action that is right everywhere, switch it off: set its limit to null.

The checkpoint and the adapter hold the weights that the guard went back to. `--ckpt_path last` goes on from there, with the
lowered learning rates, or with those that you give.
"""


def as_markdown(events: Sequence[Mapping[str, Any]]) -> str:
    """A table of what was done, a row an action."""
    rows = [f"| {event['rollout']} | {event['action']} | {'; '.join(event['signs'])} |" for event in events]
    return "\n".join(["| after rollout | the guard | because |", "|---|---|---|", *rows])


def origin_of(best: Mapping[str, Any], monitor: str) -> str:
    """Which weights a guard goes back to, in words."""
    score, rollout = best["score"], best["number"]
    if score is None:
        return f"from after rollout {rollout}, before any evaluation" if rollout else "that the run began with"
    return f"from after rollout {rollout} ({monitor} {score:+.4f})"


def report(
    events: Sequence[Mapping[str, Any]], watch: CollapseDetector, metrics: Mapping[str, float], origin: str, monitor: str
) -> str:
    """The whole story of a run that was ended.

    Args:
        events: what was done.
        watch: the limits, and what is remembered.
        metrics: of the last rollout.
        origin: which weights are left, in words.
        monitor: what says which weights are best.
    """
    limits = []
    for sign in watch.signs:
        value = metrics.get(sign.metric)
        highest = watch.highest.get(sign.metric)
        bound = sign.bound(1.0 if highest is None else highest)
        shown = "" if value is None else f"{value:.4g}"
        limits.append(f"| `{sign.metric}` | {'above' if sign.above else 'below'} {bound:.4g} | {shown} |")
    return "\n".join(
        [
            f"# Ended by the collapse guard after rollout {events[-1]['rollout']}",
            "",
            f"The weights are those {origin}; `{monitor}` says which are best.",
            "",
            "## What happened",
            "",
            as_markdown(events),
            "",
            "## Its limits",
            "",
            "| metric | a sign where | in the last rollout |",
            "|---|---|---|",
            *limits,
            "",
            ADVICE,
        ]
    )
