"""The bonus for observations that are seldom seen, from exact counts of their texts."""

import hashlib
import math
from typing import Any, Literal

import torch
from torch import Tensor

from lgym import distributed
from lgym.functional import count_novelty
from lgym.rollout import Rollout
from lgym.types import ConfigError

CAPACITY = 250_000
"""Observations whose counts are kept; when there are more, the less visited half is forgotten."""


class ExplorationBonus:
    """Pays the first visit of each episode to an observation, the more the fewer episodes have been there.

        b = w * R / M * 1[first visit in its episode] / sqrt(N)

    N counts the run's episodes that came to this text, the rollout's own and all processes' included, so one
    text pays the same all through a rollout. R is the size of the rollout's largest return (1 where all are
    0), and M the highest mean per episode of the rest of the formula that a rollout has had: so an average
    episode is paid w of the largest return at most, in any environment, and less as counts grow.

    The product of a bonus within the episode and one over the run works both where episodes are alike and
    where each has a map of its own: "A Study of Global and Episodic Bonuses for Exploration in Contextual
    MDPs", Henaff et al. 2023, arXiv:2306.03236. Paying first visits only, as NovelD (Zhang et al. 2021) does,
    leaves nothing to be had by going back and forth.

    An episode's first observation, which no action led to, and one that terminates it, which the model never
    sees, pay nothing.

    Args:
        coef: w at the start of the run.
        anneal: where w has fallen to 0, linearly: after so many rollouts, or, up to 1, at that fraction of
            trainer.max_epochs, with which it changes in a run that is prolonged. Null lets the counts alone
            make bonuses small. Auto is 0.5, and null in a run without a maximum.
    """

    def __init__(self, coef: float = 0.3, anneal: float | Literal["auto"] | None = "auto") -> None:
        if not 0 < coef < math.inf:
            raise ConfigError(f"data.exploration_bonus: coef is {coef}; it must be above 0.")
        if isinstance(anneal, float | int) and not 0 < anneal < math.inf:
            raise ConfigError(f"data.exploration_bonus: anneal is {anneal}; it must be above 0, or null.")
        self.coef = coef
        self.anneal = anneal
        self._counts: dict[int, int] = {}  # episodes that visited each text, by its digest
        self._highest_mean = 0.0

    def weight(self, rollouts: int, max_rollouts: int | None) -> float:
        """The weight w of the rollout behind so many others, in a run of at most `max_rollouts`.

        Raises:
            ConfigError: where `anneal` is a fraction of a run that has no maximum.
        """
        limit = None if max_rollouts is None or max_rollouts < 0 else max_rollouts
        end = self.anneal
        if end == "auto":
            end = None if limit is None else 0.5
        if end is None:
            return self.coef
        if end <= 1:
            if limit is None:
                raise ConfigError(
                    f"data.exploration_bonus: anneal is {end:g}, a fraction of trainer.max_epochs, which is "
                    f"{max_rollouts}. Give a number of rollouts above 1, or null, or set trainer.max_epochs."
                )
            end *= limit
        return self.coef * max(0.0, 1 - rollouts / max(end, 1))

    def bonuses(self, rollout: Rollout, rollouts: int, max_rollouts: int | None) -> Tensor:
        """Count the visits of a rollout, and pay for them. All processes have to call this together.

        Args:
            rollout: what was played.
            rollouts: the rollouts before it.
            max_rollouts: of the run; see `weight`.

        Returns:
            [E, N] a bonus per turn.
        """
        assert rollout.first_visits is not None
        novelty = count_novelty(self._count(rollout.first_visits))
        _, episodes = rollout.episode_ids[rollout.mask].unique(return_inverse=True)
        returns = torch.zeros(int(episodes.max()) + 1).index_add(0, episodes, rollout.rewards[rollout.mask])
        sums = (float(novelty.sum()), len(returns), float(returns.abs().max()))
        totals, numbers, sizes = zip(*distributed.all_gather_object(sums), strict=True)
        self._highest_mean = max(self._highest_mean, sum(totals) / sum(numbers))
        size = max(sizes) or 1.0
        return novelty * (self.weight(rollouts, max_rollouts) * size / (self._highest_mean or 1.0))

    def _count(self, first_visits: Tensor) -> Tensor:
        """Add the visits of all processes to the counts; [E, N] the count of each turn's, 0 where none."""
        digests, index, visits = first_visits.unique(return_inverse=True, return_counts=True)
        for shard in distributed.all_gather_object((digests.tolist(), visits.tolist())):
            for digest, number in zip(*shard, strict=True):
                if digest:
                    self._counts[digest] = self._counts.get(digest, 0) + number
        counts = torch.tensor([self._counts.get(digest, 0) for digest in digests.tolist()])[index]
        if len(self._counts) > CAPACITY:
            ranked = sorted(self._counts, key=self._counts.__getitem__)  # of equals the oldest first
            for digest in ranked[: len(ranked) - CAPACITY // 2]:
                del self._counts[digest]
        return counts

    def state_dict(self) -> dict[str, Any]:
        """The counts and the scale; plain numbers."""
        return {
            "digests": list(self._counts),
            "counts": list(self._counts.values()),
            "highest_mean": self._highest_mean,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` wrote."""
        self._counts = dict(zip(state["digests"], state["counts"], strict=True))
        self._highest_mean = state["highest_mean"]


def text_digest(text: str) -> int:
    """A number of 64 bits for a text, the same in every process and run; never 0."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1
