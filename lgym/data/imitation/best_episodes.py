"""The buffer of self-imitation: the run's own best episodes, kept to be imitated again."""

from collections.abc import Iterable
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from lgym.data.imitation.demonstrations import Demonstration
from lgym.types import ConfigError


class FinishedEpisode(NamedTuple):
    """An episode played to its end.

    Attributes:
        episode_return: the undiscounted sum of its rewards.
        reset_seed: the seed that the environment was reset with.
        turns: its turns, the oldest first.
        rewards: of the turns.
    """

    episode_return: float
    reset_seed: int
    turns: tuple[Demonstration, ...]
    rewards: tuple[float, ...] = ()


class BestEpisodeBuffer:
    """The top fraction, by return, of every rollout, each sequence of turns once.

    "Self-Imitation Learning", Oh et al. 2018, arXiv:1806.05635.

    Episodes as good as the last of the fraction are kept with it: which of equals to take would be arbitrary.
    For the same reason, a rollout in which no episode stands out gives none: without `min_return`, what is
    kept must be better than the rollout's worst. So a rollout of one episode, or of equal ones, needs
    `min_return` to give any.

    Args:
        top_fraction: the fraction of a rollout's episodes to keep, 0 < top_fraction <= 1, rounded to one
            episode or more.
        capacity: the maximum number of episodes; the worst leave first, of equal ones the oldest.
        min_return: the return that an episode must have to be kept; null asks that it is not the rollout's
            worst.
        rewarded_turns: keep of these episodes the turns alone whose own reward is above 0. Good episodes have
            bad turns too; where each good turn is paid, what is left is good.
    """

    def __init__(
        self,
        top_fraction: float = 0.1,
        capacity: int = 1000,
        min_return: float | None = None,
        rewarded_turns: bool = False,
    ) -> None:
        if not 0 < top_fraction <= 1:
            raise ConfigError(f"top_fraction is {top_fraction}; it must be above 0 and at most 1.")
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity}; it must be 1 or more.")
        self.top_fraction = top_fraction
        self.capacity = capacity
        self.min_return = min_return
        self.rewarded_turns = rewarded_turns
        self._episodes: dict[tuple[Demonstration, ...], FinishedEpisode] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._episodes)

    def add(self, episodes: Iterable[tuple[Any, ...]]) -> None:
        """Add the best of a rollout's `FinishedEpisode`s.

        One that was kept before counts as new, with the better of its returns.
        """
        for episode in self._best([FinishedEpisode(*episode) for episode in episodes]):
            turns = self._kept_turns(episode)
            if turns:
                known = self._episodes.pop(turns, episode)
                best_return = max(episode.episode_return, known.episode_return)
                self._episodes[turns] = FinishedEpisode(best_return, episode.reset_seed, turns)
        excess = max(0, len(self._episodes) - self.capacity)
        for episode in sorted(self._episodes.values(), key=lambda episode: episode.episode_return)[:excess]:
            del self._episodes[episode.turns]

    def turns(self) -> list[Demonstration]:
        """The distinct turns of the kept episodes. One observation may have several answers."""
        return list(dict.fromkeys(turn for turns in self._episodes for turn in turns))

    def state_dict(self) -> dict[str, Any]:
        """The kept episodes, every distinct turn written once; plain numbers and texts."""
        turn_index: dict[tuple[Any, ...], int] = {}
        episodes = []
        for episode in self._episodes.values():
            turns = [tuple(vars(turn).values()) for turn in episode.turns]
            indices = [turn_index.setdefault(turn, len(turn_index)) for turn in turns]
            episodes.append((float(episode.episode_return), int(episode.reset_seed), indices))
        return {"turns": list(turn_index), "episodes": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` wrote."""
        distinct = [Demonstration.restored(fields) for fields in state["turns"]]
        self._episodes = {}
        for episode_return, reset_seed, indices in state["episodes"]:
            turns = tuple(distinct[index] for index in indices)
            self._episodes[turns] = FinishedEpisode(episode_return, reset_seed, turns)

    def _kept_turns(self, episode: FinishedEpisode) -> tuple[Demonstration, ...]:
        if not self.rewarded_turns:
            return episode.turns
        return tuple(turn for turn, reward in zip(episode.turns, episode.rewards, strict=True) if reward > 0)

    def _best(self, episodes: list[FinishedEpisode]) -> list[FinishedEpisode]:
        if not episodes:
            return []
        returns = [np.float32(episode.episode_return) for episode in episodes]  # as exact as their rewards
        in_order = sorted(returns, reverse=True)
        threshold = in_order[max(1, round(self.top_fraction * len(returns))) - 1]
        if self.min_return is not None:
            threshold = max(threshold, np.float32(self.min_return))
            good = [episode_return >= threshold for episode_return in returns]
        else:
            good = [threshold <= episode_return > in_order[-1] for episode_return in returns]
        return list(compress(episodes, good))
