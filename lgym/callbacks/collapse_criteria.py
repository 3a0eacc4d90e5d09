"""What a rollout of a collapsing run looks like: signs with their limits, and what is remembered of the rollouts before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any


@dataclass(frozen=True)
class CollapseCriterion:
    """A metric on the wrong side of a limit. It counts from the first rollout on in which the metric was on the right side:
    what a run began with is not held against it."""

    metric: str
    limit: float
    above: bool = False
    """Whether the wrong side is above the limit; otherwise it is below."""

    share: bool = False
    """Whether the limit is a share of the highest value so far."""

    at_once: bool = False
    """Whether it counts from the first rollout on, whatever that was like."""

    with_slump: bool = False
    """Whether it only counts while the mean return is below the run's best by more than chance: a policy that has learned
    all there is to learn looks the same otherwise."""

    def bound(self, highest: float) -> float:
        return self.limit * highest if self.share else self.limit

    def wrong(self, value: float, highest: float) -> bool:
        bound = self.bound(highest)
        return value > bound if self.above else value < bound

    def told(self, value: float, highest: float) -> str:
        share = f" ({self.limit:g} of its highest)" if self.share else ""
        return f"{self.metric} is {value:.4g}, {'above' if self.above else 'below'} {self.bound(highest):.4g}{share}"


CRITERIA: dict[str, tuple[str, dict[str, bool]]] = {
    "max_dominant_action": ("rollout/dominant_action", {"above": True}),
    "min_action_information": ("rollout/action_information", {"share": True}),
    "max_repetition": ("rollout/repetition", {"above": True}),
    "min_parse_rate": ("rollout/parse_rate", {"share": True}),
    "max_kl": ("policy/approx_kl", {"above": True, "at_once": True}),
    "min_entropy": ("policy/entropy", {"with_slump": True}),
    "min_variance_within": ("rollout/reward_variance_within", {"share": True, "with_slump": True}),
    "min_variance_across": ("rollout/reward_variance_across", {"share": True, "with_slump": True}),
    "min_explained_variance": ("value/explained_variance", {"with_slump": True}),
}
"""Metric and kind of each limit, by the limit's name."""

OF_LEARNING = ("policy/entropy", "policy/approx_kl")
"""What is known of the passes over a rollout; the rest is when it has been played."""


def build_criteria(**limits: float | None) -> list[CollapseCriterion]:
    """By the names of `CRITERIA`; a limit that is `None` is none."""
    return [CollapseCriterion(CRITERIA[name][0], limit, **CRITERIA[name][1]) for name, limit in limits.items() if limit is not None]


NOTICEABLE = 0.01
"""The share of the range of returns below which a fall is none, however little chance there is in it: once a game is solved,
returns do not vary, and 0.9549 would be a fall from 0.9551."""


class CollapseDetector:
    """Looks at one rollout after the other. It learns what is usual only from those that show no sign."""

    def __init__(self, signs: Sequence[CollapseCriterion]) -> None:
        self.signs = tuple(signs)
        self.right: set[str] = set()  # metrics that have been on the right side of their limit
        self.highest: dict[str, float] = {}
        self.best: tuple[float, float] | None = None  # mean return, with its standard error
        self.range: tuple[float, float] | None = None  # that a standard deviation to either side of the means has covered

    def look(self, metrics: Mapping[str, float]) -> list[str]:
        """The signs that a rollout shows, in words; metrics that it lacks, or that are not finite, show none."""
        found = []
        slump = self._slump(metrics)
        for sign in self.signs:
            value = metrics.get(sign.metric)
            if value is None or not isfinite(value):
                continue
            highest = self.highest.get(sign.metric, value)
            if not sign.wrong(value, highest):
                self.right.add(sign.metric)
            elif (sign.at_once or sign.metric in self.right) and (slump or not sign.with_slump):
                found.append(sign.told(value, highest) + (f", and {slump}" if sign.with_slump else ""))
        if not found:
            self._remember(metrics)
        return found

    def _slump(self, metrics: Mapping[str, float]) -> str:
        """How far the mean return is below the best one, if by more than two standard errors of each, and by more than is
        `NOTICEABLE`."""
        now = mean_return(metrics)
        if now is None or self.best is None:
            return ""
        low, high = self.range or (0.0, 0.0)
        if now[0] >= self.best[0] - max(2 * (now[1] + self.best[1]), NOTICEABLE * (high - low)):
            return ""
        return f"the mean return is {now[0]:.4g} after {self.best[0]:.4g}"

    def _remember(self, metrics: Mapping[str, float]) -> None:
        for sign in self.signs:
            value = metrics.get(sign.metric)
            if sign.share and value is not None and isfinite(value):
                self.highest[sign.metric] = max(value, self.highest.get(sign.metric, value))
        now = mean_return(metrics)
        if now is None:
            return
        if self.best is None or now[0] > self.best[0]:
            self.best = now
        deviation = metrics.get("rollout/return_std", 0.0)
        low, high = self.range or (now[0], now[0])
        self.range = min(low, now[0] - deviation), max(high, now[0] + deviation)

    def state_dict(self) -> dict[str, Any]:
        best = None if self.best is None else list(self.best)
        covered = None if self.range is None else list(self.range)
        return {"right": sorted(self.right), "highest": dict(self.highest), "best": best, "range": covered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.right, self.highest = set(state["right"]), dict(state["highest"])
        self.best, self.range = (
            None if pair is None else (pair[0], pair[1]) for pair in (state["best"], state.get("range"))
        )


def mean_return(metrics: Mapping[str, float]) -> tuple[float, float] | None:
    """Of the episodes that ended in a rollout, with its standard error; `None` where none did."""
    episodes = metrics.get("rollout/episodes", 0.0)
    if not episodes or "rollout/return_mean" not in metrics:
        return None
    return metrics["rollout/return_mean"], metrics.get("rollout/return_std", 0.0) / sqrt(episodes)
