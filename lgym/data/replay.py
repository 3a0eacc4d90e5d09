"""The run's own best episodes, kept to be imitated again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from lgym.data.demonstrations import Demonstration
from lgym.types import ConfigError


class FinishedEpisode(NamedTuple):
    """An episode played to its end."""

    episode_return: float
    """The undiscounted sum of its rewards."""

    reset_seed: int
    """What the environment was reset with."""

    turns: tuple[Demonstration, ...]


class BestEpisodes:
    """The top fraction, by return, of every rollout, each sequence of observations and answers once.

    Episodes as good as the last of the fraction are kept with it: which of equals to take would be arbitrary. For the same
    reason, a rollout in which no episode stands out gives none: without `min_return`, what is kept must be better than the
    rollout's worst. So a rollout of one episode, or of equal ones, needs `min_return` to give any.
    """

    def __init__(self, top_fraction: float = 0.1, capacity: int = 1000, min_return: float | None = None) -> None:
        """
        Args:
            top_fraction: the share of a rollout's episodes to keep, 0 < top_fraction <= 1, rounded to one episode or more.
            capacity: episodes kept at most; the worst leave first, of equal ones the oldest.
            min_return: the return that an episode must have to be kept; null asks that it is not the rollout's worst.
        """
        if not 0 < top_fraction <= 1:
            raise ConfigError(f"top_fraction is {top_fraction}; it must be above 0 and at most 1.")
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity}; it must be 1 or more.")
        self.top_fraction, self.capacity, self.min_return = top_fraction, capacity, min_return
        self._episodes: dict[tuple[Demonstration, ...], FinishedEpisode] = {}  # the oldest first

    def __len__(self) -> int:
        """Episodes kept."""
        return len(self._episodes)

    def add(self, episodes: Iterable[tuple[float, int, tuple[Demonstration, ...]]]) -> None:
        """Takes the best of a rollout's `FinishedEpisode`s.

        One that was kept before counts as new, with the better of its returns.
        """
        for episode in self._best([FinishedEpisode(float(paid), int(seed), turns) for paid, seed, turns in episodes]):
            known = self._episodes.pop(episode.turns, episode)
            best = max(episode.episode_return, known.episode_return)
            self._episodes[episode.turns] = episode._replace(episode_return=best)
        excess = max(0, len(self._episodes) - self.capacity)
        for episode in sorted(self._episodes.values(), key=lambda episode: episode.episode_return)[:excess]:
            del self._episodes[episode.turns]

    def turns(self) -> list[Demonstration]:
        """The distinct turns of the kept episodes. One observation may have several answers."""
        return list(dict.fromkeys(turn for episode in self._episodes.values() for turn in episode.turns))

    def state_dict(self) -> dict[str, Any]:
        """The kept episodes, every distinct turn written once; plain numbers and texts."""
        numbers: dict[tuple[Any, ...], int] = {}
        episodes = [
            (episode_return, reset_seed, [numbers.setdefault(_fields(turn), len(numbers)) for turn in turns])
            for episode_return, reset_seed, turns in self._episodes.values()
        ]
        return {"turns": list(numbers), "episodes": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings back what `state_dict` wrote."""
        known = [Demonstration(*fields) for fields in state["turns"]]
        self._episodes = {}
        for episode_return, reset_seed, numbers in state["episodes"]:
            turns = tuple(known[number] for number in numbers)
            self._episodes[turns] = FinishedEpisode(episode_return, reset_seed, turns)

    def _best(self, episodes: list[FinishedEpisode]) -> list[FinishedEpisode]:
        if not episodes:
            return []
        returns = sorted((episode.episode_return for episode in episodes), reverse=True)
        last = returns[max(1, round(self.top_fraction * len(returns))) - 1]
        if self.min_return is not None:
            return [episode for episode in episodes if episode.episode_return >= max(last, self.min_return)]
        return [episode for episode in episodes if last <= episode.episode_return > returns[-1]]


def _fields(turn: Demonstration) -> tuple[Any, ...]:
    """In the order in which `Demonstration` takes them."""
    return turn.observation_text, turn.response_text, turn.candidates, turn.response_ids
