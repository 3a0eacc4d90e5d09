"""Live data: an iterable that plays a rollout and hands out its minibatches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from lgym import distributed
from lgym.data.imitation.sft_sampler import SFTSampler
from lgym.data.resolved_config import ResolvedConfig
from lgym.data.rollout.collector import Collector, PlayProgress, Progress
from lgym.data.rollout.looping import looping_episodes
from lgym.data.rollout.training_play import TrainingPlay
from lgym.data.sharding import minibatches
from lgym.functional import mean_margin
from lgym.phases import phase
from lgym.rollout import EpisodeStatistics, Rollout
from lgym.types import Episode, Learner

MIN_EPISODES = 50
"""Episodes of an evaluation before its interval is believed: rare successes are not among the first."""


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


@dataclass(eq=False)
class RolloutDataset(IterableDataset):
    """One iteration is one rollout: play it, have it prepared, then give K shuffled passes of minibatches;
    while imitation is all that is learned, passes over the turns to imitate.

    It has no length, since the number of distinct prompts is known only when it has been played;
    `minibatches` has it then.
    """

    learner: Learner
    """Whose policy plays, and who prepares what to learn."""

    play: TrainingPlay
    settings: ResolvedConfig
    progress: Progress
    """Told how far the playing is."""

    sft_sampler: SFTSampler | None = None
    """Turns to imitate, beside each minibatch or in place of them."""

    rollouts: int = 0
    """Rollouts played before."""

    limit: int | None = None
    """Rollouts to play in all; `None` or a negative number is any number."""

    minibatches: int | None = None
    """Minibatches of the rollout that is learned from, if all passes are as long as the one at hand; `None`
    before the first rollout."""

    def __iter__(self) -> Iterator[InFlight]:
        if self.limit is not None and 0 <= self.limit <= self.rollouts:
            return  # Lightning asks for a first batch even where a run that is resumed has come to its end
        sampler = self.sft_sampler if self.learner.uses_sft(self.rollouts) else None
        imitating = self.rollouts < self.learner.sft_rollouts
        fewest = None
        if sampler is not None:
            sampler.begin_rollout(first=self.rollouts == 0)
            fewest = warm_up_episodes(self.settings) if imitating and not sampler.buffers else None
        enough = False
        while not enough:
            rollout = self.play_rollout(fewest)
            if sampler is not None:
                sampler.add_rollout(rollout)
            with phase("preparing"):
                batch, metrics = self.learner.prepare(rollout)
            enough = self.play.keep(batch)
        self.rollouts += 1
        if sampler is None:
            batches = self._minibatches(batch)
        elif imitating:
            batches = self._imitation(batch, sampler)
        else:
            batches = self._with_demonstrations(self._minibatches(batch), sampler)
        first = next(batches)
        yield InFlight(replace(first, metrics=metrics, token_traces=batch.token_traces))
        yield from map(InFlight, batches)

    def _minibatches(self, batch: Any) -> Iterator[Any]:
        """Passes over a rollout, or draws from the replay buffer."""
        order_rng, replay = self.play.rngs["order"], self.play.replay
        if replay is not None:
            self.minibatches = replay.updates_per_rollout
            for _ in range(self.minibatches):
                yield replay.sample(order_rng)
            return
        for _ in range(self.settings.update_epochs):
            limit = self.settings.prompts_per_pass
            part = batch if limit is None else batch.thinned(limit, order_rng)
            order = order_rng.permutation(len(part.prompt_chains)).tolist()
            size = self.settings.prompts_per_minibatch(part.num_units)
            one_pass = list(minibatches(part, size, order))
            self.minibatches = self.settings.update_epochs * len(one_pass)
            yield from one_pass

    def _with_demonstrations(self, batches: Iterator[Any], sampler: SFTSampler) -> Iterator[Any]:
        """Minibatches with demonstrated turns beside them, if there are any."""
        for minibatch in batches:
            yield replace(minibatch, supervised=sampler.sample(self.play.rngs["order"]))

    def _imitation(self, batch: Any, sampler: SFTSampler) -> Iterator[Any]:
        """Passes over the turns to imitate; their carrier is a minibatch that has no loss, and goes alone,
        once, while there are none."""
        carrier = batch
        if self.play.replay is None:
            size = self.settings.prompts_per_minibatch(batch.num_units)
            carrier = next(minibatches(batch, size, range(len(batch.prompt_chains))))
        if not sampler.has_turns:
            self.minibatches = 1
            yield carrier
            return
        epochs = self.learner.sft_epochs(sampler.num_minibatches, self.settings.update_epochs)
        self.minibatches = epochs * sampler.num_minibatches
        for _ in range(epochs):
            for turns in sampler.demonstration_batches(self.play.rngs["order"]):
                yield replace(carrier, supervised=turns)

    def play_rollout(self, episodes: int | None = None) -> Rollout:
        """Play `episodes`, by default as many episodes or turns as a rollout has; with bonuses where they are
        wanted."""
        settings, play = self.settings, self.play
        with phase("playing"), self.learner.behavior(self.rollouts) as policy:
            rollout = play.collector.play(
                policy,
                play.rngs["actions"],
                episodes=episodes or settings.episodes_per_rollout,
                turns=settings.turns_per_rollout,
                progress=self.progress,
            )
        if settings.exploration_bonus is None:
            return rollout
        return replace(
            rollout, bonuses=settings.exploration_bonus.bonuses(rollout, self.rollouts, self.limit)
        )


def statistics(_: Collector, rollout: Rollout) -> EpisodeStatistics:
    """The outcomes of the episodes that were played."""
    return replace(rollout.ended_episodes, looping=looping_episodes(rollout))


def transcripts(collector: Collector, _: Rollout) -> Sequence[Episode]:
    """The played episodes with their text."""
    return collector.transcripts


@dataclass(eq=False)
class EvaluationDataset(IterableDataset):
    """Plays the same episodes, by seed, whenever it is iterated; yields their outcome.

    With a `margin` it plays them in parts, of one in each environment, until the mean return is known so
    well: whole parts, so that short episodes are not preferred. Each part's outcome is a batch.
    """

    learner: Learner
    make_collector: Callable[[], Collector]
    """Makes the environments, and with them the seeds, anew."""

    seed: int | np.random.SeedSequence | None
    """Seed of the sampling of actions; `None` plays greedily."""

    episodes: int
    progress: Progress
    outcome: Callable[[Collector, Rollout], Any] = statistics
    """The batch to yield, of what was played."""

    margin: float | None = None
    """Half the width of the mean return's 95 % interval at which to stop; `None` plays all episodes."""

    def __iter__(self) -> Iterator[InFlight]:
        if self.episodes == 0 and self.margin is None:  # more processes than episodes
            with self.learner.inference():  # where those that share weights meet
                return
        collector = self.make_collector()
        rng = None if self.seed is None else np.random.default_rng(self.seed)
        batches, returns = [], torch.zeros(0)
        try:
            with phase("evaluating"), self.learner.inference() as policy:
                for part in self._parts(len(collector.runners)):
                    if part > 0:
                        rollout = collector.play(policy, rng, episodes=part, progress=self._progress(returns))
                        batches.append(self.outcome(collector, rollout))
                        returns = torch.cat([returns, rollout.episode_returns])
                    if self._is_known(returns):
                        break
        finally:
            collector.close()
        yield from map(InFlight, batches)

    def _parts(self, num_envs: int) -> list[int]:
        """The number of episodes of each part; with a margin every process has as many parts."""
        if self.margin is None:
            return [self.episodes]
        size = max(num_envs, 1)
        count = max(distributed.all_gather_object(-(-self.episodes // size)))
        return [max(0, min(size, self.episodes - part * size)) for part in range(count)]

    def _progress(self, returns: Tensor) -> Progress:
        """Reports on a part, behind episodes with these returns."""

        def show(part: PlayProgress) -> None:
            ended = len(returns) + part.episodes
            total = float(returns.sum()) + part.return_sum
            self.progress(replace(part, done=ended, total=self.episodes, episodes=ended, return_sum=total))

        return show

    def _is_known(self, returns: Tensor) -> bool:
        """Check if the mean return over all processes is known well enough."""
        if self.margin is None:
            return False
        all_returns = distributed.all_gather_cat(returns)
        n = len(all_returns)
        return n >= MIN_EPISODES and bool(mean_margin(all_returns.std(), n) <= self.margin)


def warm_up_episodes(settings: ResolvedConfig) -> int | None:
    """One in each environment, of 256 at most, in whole groups, and no more than a rollout has; `None` where
    that is counted in turns."""
    if settings.episodes_per_rollout is None:
        return None
    groups = -(-min(settings.num_envs, 256) // settings.group_size)
    return min(groups * settings.group_size, settings.episodes_per_rollout)


def loader(dataset: IterableDataset) -> DataLoader:
    """A loader of these datasets. Batches come ready from it; worker processes would not have the policy. A
    loader draws a number whenever it is iterated: from a generator of its own, so that an evaluation more
    leaves the run's randomness as it was."""
    return DataLoader(
        dataset, batch_size=None, num_workers=0, collate_fn=lambda batch: batch, generator=torch.Generator()
    )
