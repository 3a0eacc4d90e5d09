"""Live data: an iterable that plays a rollout and hands out its minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from lgym.batch import EpisodeStatistics
from lgym.data.imitation.sft_sampler import SFTSampler
from lgym.data.rollout.collector import Collector, Progress
from lgym.data.sharding import minibatches
from lgym.rollout import Rollout
from lgym.types import Learner


class InFlight:
    """Carries a batch past Lightning's precision plugins, which round every float tensor that they find in
    it.

    Under `bf16-true`, recorded log-probabilities would lose all but three digits. The plugins do not look
    into this object; moving it to a device unpacks it.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def to(self, device: torch.device | str, **_: Any) -> Any:
        return self.batch.to(device) if hasattr(self.batch, "to") else self.batch


class RolloutDataset(IterableDataset):
    """One iteration is one rollout: play it, have it prepared, then give K shuffled passes of minibatches;
    while only demonstrations are learned, K passes over these.

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
        sft_sampler: SFTSampler | None = None,
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
            sft_sampler: demonstrated turns to learn from beside each minibatch.
            warm_up_episodes: to play in place of `episodes` where only demonstrations are learned: to see how
                it gets on.
            rollouts: how many were played before.
            limit: how many there are to be; `None` or a negative number is any number.
        """
        self.learner = learner
        self.collector = collector
        self.sft_sampler = sft_sampler
        self.action_rng = action_rng
        self.order_rng = order_rng
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
        sampler = self.sft_sampler
        warming_up = (
            sampler is not None and sampler.has_demonstrations and self.rollouts < self.learner.sft_rollouts
        )
        rollout = self._play(
            self.warm_up_episodes if warming_up and self.episodes is not None else self.episodes
        )
        self.rollouts += 1
        if sampler is not None:
            sampler.add_rollout(rollout)
        batch, metrics = self.learner.prepare(rollout)
        batches = self._demonstrations(batch) if warming_up else self._passes(batch)
        first = next(batches)
        yield InFlight(replace(first, metrics=metrics, token_traces=batch.token_traces))
        yield from map(InFlight, batches)

    def _passes(self, batch: Any) -> Iterator[Any]:
        """Passes over a rollout, with demonstrated turns beside each minibatch."""
        for _ in range(self.update_epochs):
            order = self.order_rng.permutation(len(batch.prompt_chains)).tolist()
            for minibatch in minibatches(batch, self.minibatch_size, order):
                turns = None if self.sft_sampler is None else self.sft_sampler.sample(self.order_rng)
                yield replace(minibatch, supervised=turns)

    def _demonstrations(self, batch: Any) -> Iterator[Any]:
        """Passes over the demonstrations; their carrier is a minibatch that has no loss."""
        assert self.sft_sampler is not None
        carrier = next(minibatches(batch, self.minibatch_size, range(len(batch.prompt_chains))))
        for _ in range(self.update_epochs):
            for turns in self.sft_sampler.demonstrations(self.order_rng):
                yield replace(carrier, supervised=turns)

    def _play(self, episodes: int | None) -> Rollout:
        with self.learner.inference() as policy:
            return self.collector.play(
                policy, self.action_rng, episodes=episodes, turns=self.turns, progress=self.progress
            )


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
            with self.learner.inference() as policy:
                rollout = collector.play(policy, rng, episodes=self.episodes, progress=self.progress)
        finally:
            collector.close()
        if self.outcome is not None:
            yield InFlight(self.outcome(collector, rollout))
        else:
            yield InFlight(EpisodeStatistics(rollout.episode_returns, rollout.episode_lengths))


def warm_up_episodes(num_envs: int, group_size: int, episodes_per_rollout: int | None) -> int | None:
    """One in each environment, of 256 at most, in whole groups, and no more than a rollout has; `None` where
    that is counted in turns."""
    if episodes_per_rollout is None:
        return None
    groups = -(-min(num_envs, 256) // group_size)
    return min(groups * group_size, episodes_per_rollout)


def loader(dataset: IterableDataset) -> DataLoader:
    """A loader of these datasets. Batches come ready from it; worker processes would not have the policy. A
    loader draws a number whenever it is iterated: from a generator of its own, so that an evaluation more
    leaves the run's randomness as it was."""
    return DataLoader(
        dataset, batch_size=None, num_workers=0, collate_fn=lambda batch: batch, generator=torch.Generator()
    )
