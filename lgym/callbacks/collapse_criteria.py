"""Criteria for a collapsing run: limits of a rollout's metrics, what is remembered of the rollouts before,
and the report of a run that violated them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any


@dataclass(frozen=True)
class CollapseCriterion:
    """A limit of a metric.

    Attributes:
        metric: the metric's name.
        limit: the limit; `None` is none.
        above: values above the limit violate it; otherwise those below it.
        relative: the limit is a fraction of the highest value so far.
        at_once: it counts from the first rollout on, whatever that was like.
        with_slump: it counts only while the mean return is below the run's best by more than chance. A policy
            that has learned all there is to learn looks the same otherwise.
    """

    metric: str
    limit: float | None
    above: bool = False
    relative: bool = False
    at_once: bool = False
    with_slump: bool = False

    def bound(self, highest: float) -> float:
        """The limit, given the metric's highest value so far."""
        assert self.limit is not None
        return self.limit * highest if self.relative else self.limit

    def violated(self, value: float, highest: float) -> bool:
        """True if the value is on the wrong side of the limit."""
        return value > self.bound(highest) if self.above else value < self.bound(highest)

    def words(self, highest: float) -> str:
        """The side and the bound, such as `above 0.95`."""
        return f"{'above' if self.above else 'below'} {self.bound(highest):.4g}"


UPDATE_METRICS = ("policy/entropy", "policy/approx_kl", "policy/old_kl")  # of the update, not of the play

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

# Fraction of the range of returns below which a fall is none, however little chance there is in it: once a
# game is solved, returns do not vary, and 0.9549 would be a fall from 0.9551.
NOTICEABLE = 0.01


class CollapseDetector:
    """Compares one rollout after the other with the criteria; only those that keep all of them set the
    standard.

    Args:
        max_dominant_action: `rollout/dominant_action`: one action for nearly everything. Null where that
            is right.
        min_action_information: `policy/action_state_mi`, as a share of its highest: the same answer
            to every state. Likewise.
        max_repetition: `rollout/repetition`: responses that go round in circles.
        min_parse_rate: `rollout/parse_rate`, as a share of its highest.
        max_kl: `policy/old_kl`, or its estimate `policy/approx_kl`, nats: one update took the policy this
            far.
        min_entropy: `policy/entropy`, nats.
        min_variance_within: `rollout/return_variance_within`, as a share of its highest.
        min_variance_across: `rollout/return_variance_across`, as a share of its highest.
        min_explained_variance: `value/explained_variance`.

    Attributes:
        criteria: the criteria.
        armed: metrics that have kept their limit.
        highest: the highest value of each metric with a relative limit.
        best: the highest mean return, with its standard error.
        range: lowest and highest return within a standard deviation of any mean.
    """

    def __init__(
        self,
        max_dominant_action: float | None = 0.95,
        min_action_information: float | None = 0.02,
        max_repetition: float | None = 0.5,
        min_parse_rate: float | None = 0.5,
        max_kl: float | None = 0.5,
        min_entropy: float | None = 0.005,
        min_variance_within: float | None = 0.01,
        min_variance_across: float | None = 0.01,
        min_explained_variance: float | None = -0.5,
    ) -> None:
        criteria = (
            CollapseCriterion("rollout/dominant_action", max_dominant_action, above=True),
            CollapseCriterion("policy/action_state_mi", min_action_information, relative=True),
            CollapseCriterion("rollout/repetition", max_repetition, above=True),
            CollapseCriterion("rollout/parse_rate", min_parse_rate, relative=True),
            CollapseCriterion("policy/approx_kl", max_kl, above=True, at_once=True),
            CollapseCriterion("policy/old_kl", max_kl, above=True, at_once=True),
            CollapseCriterion("policy/entropy", min_entropy, with_slump=True),
            CollapseCriterion(
                "rollout/return_variance_within", min_variance_within, relative=True, with_slump=True
            ),
            CollapseCriterion(
                "rollout/return_variance_across", min_variance_across, relative=True, with_slump=True
            ),
            CollapseCriterion("value/explained_variance", min_explained_variance, with_slump=True),
        )
        self.criteria = [criterion for criterion in criteria if criterion.limit is not None]
        self.armed: set[str] = set()
        self.highest: dict[str, float] = {}
        self.best: tuple[float, float] | None = None
        self.range: tuple[float, float] | None = None

    def detect(self, metrics: Mapping[str, float]) -> list[str]:
        """The violations of a rollout, in words; metrics that it lacks, or that are not finite, violate
        nothing."""
        signs = []
        slump = self._slump(metrics)
        values = {name: value for name, value in metrics.items() if isfinite(value)}
        for criterion in self.criteria:
            metric = criterion.metric
            if metric in values:
                value, highest = values[metric], self.highest.get(metric, values[metric])
                if not criterion.violated(value, highest):
                    self.armed.add(metric)
                elif (criterion.at_once or metric in self.armed) and (slump or not criterion.with_slump):
                    share = f" ({criterion.limit:g} of its highest)" if criterion.relative else ""
                    fall = slump if criterion.with_slump else ""
                    signs.append(f"{metric} is {value:.4g}, {criterion.words(highest)}{share}{fall}")
        if not signs:
            self._remember(values)
        return signs

    def _slump(self, metrics: Mapping[str, float]) -> str:
        """The fall of the mean return, if by over two standard errors of each and more than `NOTICEABLE`."""
        current = mean_return(metrics)
        if current is None or self.best is None:
            return ""
        low, high = self.range or (0.0, 0.0)
        if current[0] >= self.best[0] - max(2 * (current[1] + self.best[1]), NOTICEABLE * (high - low)):
            return ""
        return f", and the mean return is {current[0]:.4g} after {self.best[0]:.4g}"

    def _remember(self, values: Mapping[str, float]) -> None:
        names = [criterion.metric for criterion in self.criteria if criterion.relative]
        known = {name: values[name] for name in names if name in values}
        self.highest |= {name: max(value, self.highest.get(name, value)) for name, value in known.items()}
        current = mean_return(values)
        if current is not None:
            self.best = current if self.best is None or current[0] > self.best[0] else self.best
            deviation = values.get("rollout/return_std", 0.0)
            low, high = self.range or (current[0], current[0])
            self.range = min(low, current[0] - deviation), max(high, current[0] + deviation)

    def state_dict(self) -> dict[str, Any]:
        return {
            "armed": sorted(self.armed),
            "highest": dict(self.highest),
            "best": self.best,
            "range": self.range,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, armed=set(state["armed"]))


def mean_return(metrics: Mapping[str, float]) -> tuple[float, float] | None:
    """Mean return of a rollout, with its standard error; `None` before an episode has ended."""
    episodes = metrics.get("rollout/episodes_reported", 0.0)
    if not episodes or "rollout/return_mean" not in metrics:
        return None
    return metrics["rollout/return_mean"], metrics.get("rollout/return_std", 0.0) / sqrt(episodes)


def events_table(events: Sequence[Mapping[str, Any]]) -> str:
    """Markdown table of a guard's actions, a row per action."""
    rows = [f"| {event['rollout']} | {event['action']} | {'; '.join(event['signs'])} |" for event in events]
    return "\n".join(["| after rollout | the guard | because |", "|---|---|---|", *rows])


def origin_of(best: Mapping[str, Any], monitor: str) -> str:
    """The weights that a guard goes back to, in words."""
    rollout = best["number"]
    if best["score"] is not None:
        return f"from after rollout {rollout} ({monitor} {best['score']:+.4f})"
    return f"from after rollout {rollout}, before any evaluation" if rollout else "that the run began with"


def report(
    events: Sequence[Mapping[str, Any]],
    detector: CollapseDetector,
    metrics: Mapping[str, float],
    best: Mapping[str, Any],
    monitor: str,
) -> str:
    """The whole story of a run that was ended, as Markdown.

    Args:
        events: the guard's actions.
        detector: the criteria, and what is remembered.
        metrics: of the last rollout.
        best: the weights that are left.
        monitor: the metric that says which weights are best.
    """
    limits = []
    for criterion in detector.criteria:
        bound = criterion.words(detector.highest.get(criterion.metric, 1.0))
        shown = f"{metrics[criterion.metric]:.4g}" if criterion.metric in metrics else ""
        limits.append(f"| `{criterion.metric}` | {bound} | {shown} |")
    return TEMPLATE.format(
        rollout=events[-1]["rollout"],
        origin=origin_of(best, monitor),
        monitor=monitor,
        events=events_table(events),
        limits="\n".join(limits),
    )
