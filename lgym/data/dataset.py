"""Live data: an iterable that plays a rollout and hands out its minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from lgym.batch import EpisodeStatistics, Rollout
from lgym.data.collector import Collector, Progress
from lgym.data.imitation.sft_sampler import Imitation
from lgym.data.sharding import minibatches
from lgym.types import Learner


class InFlight:
    """Carries a batch past Lightning's precision plugins, which round every float tensor that they find in it.

    Under `bf16-true`, recorded log-probabilities would lose all but three digits. The plugins do not look into this
    object; moving it to a device unpacks it.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def to(self, device: torch.device | str, **_: Any) -> Any:
        return self.batch.to(device) if hasattr(self.batch, "to") else self.batch


class RolloutDataset(IterableDataset):
    """One iteration is one rollout: play it, have it prepared, then give K shuffled passes of minibatches; while only
    demonstrations are learned, K passes over these.

    It has no length, since the number of distinct prompts is known only when it has been played.
    """

    def __init__(
        self,
        learner: Learner,
        collector: Collector,
        action_rng: np.random.Generator,
        order_rng: np.random.Generator,
        *,
        episodes: int | None,
        turns: int | None,
        update_epochs: int,
        minibatch_size: int,
        progress: Progress,
        imitation: Imitation | None = None,
        warm_up_episodes: int | None = None,
        rollouts: int = 0,
        limit: int | None = None,
    ) -> None:
        """
        Args:
            learner: whose policy plays, and who prepares what to learn.
            collector: the environments.
            action_rng: of sampled actions.
            order_rng: of the order of minibatches and the draws of what is imitated.
            episodes: to play in a rollout, or `None`.
            turns: likewise.
            update_epochs: passes over a rollout.
            minibatch_size: as the batch counts it.
            progress: told how far the playing is.
            imitation: turns to imitate beside each minibatch.
            warm_up_episodes: to play in place of `episodes` where only demonstrations are learned: to see how it gets on.
            rollouts: how many were played before.
            limit: how many there are to be; `None` or a negative number is any number.
        """
        self.learner = learner
        self.collector = collector
        self.imitation = imitation
        self.action_rng, self.order_rng = action_rng, order_rng
        self.episodes = episodes
        self.turns = turns
        self.update_epochs = update_epochs
        self.minibatch_size = minibatch_size
        self.progress = progress
        self.warm_up_episodes = warm_up_episodes
        self.rollouts = rollouts
        self.limit = limit

    def __iter__(self) -> Iterator[InFlight]:
        if self.limit is not None and 0 <= self.limit <= self.rollouts:
            return  # Lightning asks for a first batch even where a run that is resumed has come to its end
        demonstrated = self.imitation is not None and self.imitation.always
        warming_up = demonstrated and self.rollouts < self.learner.sft_rollouts
        rollout = self._play(self.warm_up_episodes if warming_up and self.episodes is not None else self.episodes)
        self.rollouts += 1
        if self.imitation is not None:
            self.imitation.played(rollout)
        batch = self.learner.prepare(rollout)
        if warming_up and self.imitation is not None:
            carrier = next(minibatches(batch, self.minibatch_size, range(len(batch.bundles))))  # nothing is learned from it
            for _ in range(self.update_epochs):
                for turns in self.imitation.demonstrations(self.order_rng):
                    yield InFlight(replace(carrier, imitated=turns))
            return
        for _ in range(self.update_epochs):
            order = self.order_rng.permutation(len(batch.bundles)).tolist()
            for minibatch in minibatches(batch, self.minibatch_size, order):
                imitated = None if self.imitation is None else self.imitation.draw(self.order_rng)
                yield InFlight(replace(minibatch, imitated=imitated))

    def _play(self, episodes: int | None) -> Rollout:
        with self.learner.acting() as policy:
            return self.collector.play(policy, self.action_rng, episodes=episodes, turns=self.turns, progress=self.progress)


class EvaluationDataset(IterableDataset):
    """Plays the same episodes, by seed, whenever it is iterated; yields their outcome as one batch."""

    def __init__(
        self,
        learner: Learner,
        make_collector: Callable[[], Collector],
        *,
        seed: int | np.random.SeedSequence | None,
        episodes: int,
        progress: Progress,
        outcome: Callable[[Collector, Rollout], Any] | None = None,
    ) -> None:
        """
        Args:
            learner: whose policy plays.
            make_collector: makes the environments, and with them the seeds, anew.
            seed: of the sampling of actions; `None` plays greedily.
            episodes: how many to play.
            progress: told how far it is.
            outcome: what to yield; by default the returns and lengths.
        """
        self.learner = learner
        self.make_collector = make_collector
        self.seed = seed
        self.episodes = episodes
        self.progress = progress
        self.outcome = outcome

    def __iter__(self) -> Iterator[InFlight]:
        if self.episodes == 0:  # more processes than episodes
            return
        collector = self.make_collector()
        rng = None if self.seed is None else np.random.default_rng(self.seed)
        try:
            with self.learner.acting() as policy:
                rollout = collector.play(policy, rng, episodes=self.episodes, progress=self.progress)
        finally:
            collector.close()
        if self.outcome is not None:
            yield InFlight(self.outcome(collector, rollout))
        else:
            yield InFlight(EpisodeStatistics(rollout.episode_returns, rollout.episode_lengths))


def warm_up_episodes(num_envs: int, group_size: int, episodes_per_rollout: int | None) -> int | None:
    """One in each environment, of 256 at most, in whole groups, and no more than a rollout has; `None` where that is counted
    in turns."""
    if episodes_per_rollout is None:
        return None
    groups = -(-min(num_envs, 256) // group_size)
    return min(groups * group_size, episodes_per_rollout)


def loader(dataset: IterableDataset) -> DataLoader:
    """Of a dataset of this file. Batches come ready from it; worker processes would not have the policy. A loader draws a
    number whenever it is iterated: from a generator of its own, so that an evaluation more leaves the run's randomness as it
    was."""
    return DataLoader(dataset, batch_size=None, num_workers=0, collate_fn=lambda batch: batch, generator=torch.Generator())
