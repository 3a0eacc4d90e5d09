"""Episodic memory: turns or episodes of the past, retrieved by their observations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any, Literal

from rapidfuzz import fuzz, process

from lgym.memory.entries import Memory, RememberedTurn
from lgym.types import ConfigError

Summarize = Callable[[Sequence[RememberedTurn]], str]

CACHED_QUERIES = 100_000
"""Observations whose memories are cached. Beyond it the cache is cleared."""


@dataclass
class _Entry:
    observation_text: str
    content: str  # with the observation: the identity of the memory
    text: str
    mean_return: float
    count: float  # of returns in the mean, each halved by age
    rollout: int  # the last in which it happened


class EpisodicMemory:
    """Turns or whole episodes with their returns; the nearest to an observation are retrieved, the best and
    newest first.

        score = similarity * (1 - return_weight * (1 - r)) * 0.5 ** (age / half_life)

    Similarity is rapidfuzz's `fuzz.ratio` of the two observations' texts, from 0 to 1. r is the memory's mean
    return, from 0 for the lowest of all that are stored to 1 for the highest (1 if all are equal). Age counts
    the rollouts since it happened last. Of equal scores the newest comes first.

    A turn is retrieved by its observation; an episode by its first one, in every turn of an episode that
    began like it. Turns with the same observation and answer are one memory, and so are episodes that began
    alike and have the same summary: it is as old as the last of them, and its return is their mean, in which
    a return counts half after each `half_life`.

    A rollout's episodes are stored when the rollout ends, so that all of it retrieves the same.

    Args:
        unit: the unit of a memory: a turn, or an episode.
        top_k: the maximum number of memories shown.
        capacity: the maximum number of memories stored; the one with the lowest score leaves first, all taken
            as similar, and of equals the oldest.
        min_similarity: the least similarity of a memory that is shown; 1 for the same observation only.
        return_weight: the weight of returns beside similarity, 0 to 1.
        half_life: rollouts in which a memory's score halves; null leaves age aside.
        max_characters: of one memory's text; the beginning of a longer one is kept.
    """

    def __init__(
        self,
        unit: Literal["turn", "episode"] = "turn",
        top_k: int = 2,
        capacity: int = 1000,
        min_similarity: float = 0.6,
        return_weight: float = 0.5,
        half_life: float | None = 10.0,
        max_characters: int = 200,
    ) -> None:
        for name, count in (("top_k", top_k), ("capacity", capacity), ("max_characters", max_characters)):
            if count < 1:
                raise ConfigError(f"The episodic memory's {name} is {count}; it must be 1 or more.")
        for name, fraction in (("min_similarity", min_similarity), ("return_weight", return_weight)):
            if not 0 <= fraction <= 1:
                raise ConfigError(f"The episodic memory's {name} is {fraction}; it must lie between 0 and 1.")
        if half_life is not None and half_life <= 0:
            raise ConfigError(
                f"The episodic memory's half_life is {half_life} rollouts; it must be above 0, or null."
            )
        self.unit = unit
        self.top_k = top_k
        self.capacity = capacity
        self.min_similarity = min_similarity
        self.return_weight = return_weight
        self.half_life = half_life
        self.max_characters = max_characters
        self._rollouts = 0
        self._entries: dict[tuple[str, str], _Entry] = {}  # the oldest first
        self._by_observation: dict[str, list[tuple[int, float, _Entry]]] = {}  # their positions and weights
        self._retrieved: dict[str, tuple[Memory, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def similar(self, turns: Sequence[RememberedTurn], observation_text: str) -> tuple[Memory, ...]:
        """The memories retrieved at an observation after these turns of its episode, the highest score
        first."""
        query = turns[0].observation_text if self.unit == "episode" and turns else observation_text
        if query not in self._retrieved:
            if len(self._retrieved) >= CACHED_QUERIES:
                self._retrieved.clear()
            self._retrieved[query] = self._nearest(query)
        return self._retrieved[query]

    def store(self, episodes: Iterable[Sequence[RememberedTurn]], summarize: Summarize) -> None:
        """Store the episodes that ended in a rollout, in the order of their numbers."""
        self._rollouts += 1
        for entry in self._new_entries(episodes, summarize):
            key = (entry.observation_text, entry.content)
            known = self._entries.pop(key, None)
            if known is not None:
                count = known.count * self._decay(entry.rollout - known.rollout)
                total = count * known.mean_return + entry.count * entry.mean_return
                entry.count += count
                entry.mean_return = total / entry.count
            self._entries[key] = entry
        self._update_index()

    def state_dict(self) -> dict[str, Any]:
        """All memories, the oldest first; plain numbers and texts."""
        return {
            "unit": self.unit,
            "rollouts": self._rollouts,
            "entries": list(map(astuple, self._entries.values())),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` wrote. Raises `ValueError` for memories of another unit."""
        if state["unit"] != self.unit:
            raise ConfigError(
                f"The checkpoint remembers by the {state['unit']} and data.episodic_memory.unit is "
                f"{self.unit}. Go on with unit: {state['unit']}, or train anew."
            )
        self._rollouts = state["rollouts"]
        entries = [_Entry(*fields) for fields in state["entries"]]
        self._entries = {(entry.observation_text, entry.content): entry for entry in entries}
        self._update_index()

    def _new_entries(
        self, episodes: Iterable[Sequence[RememberedTurn]], summarize: Summarize
    ) -> list[_Entry]:
        merged: dict[tuple[str, str], tuple[Sequence[RememberedTurn], list[float]]] = {}
        for turns, value in self._units(episodes):
            key = (turns[0].observation_text, turns[0].answer if self.unit == "turn" else summarize(turns))
            _, returns = merged.pop(key, (turns, []))
            merged[key] = (turns, [*returns, value])
        entries = []
        for (observation_text, content), (turns, returns) in merged.items():
            text = summarize(turns)
            if len(text) > self.max_characters:
                text = text[: self.max_characters - 1] + "…"
            entries.append(
                _Entry(observation_text, content, text, fmean(returns), len(returns), self._rollouts)
            )
        return entries

    def _units(
        self, episodes: Iterable[Sequence[RememberedTurn]]
    ) -> Iterator[tuple[Sequence[RememberedTurn], float]]:
        for turns in episodes:
            returns_to_go = list(accumulate(turn.reward for turn in reversed(turns)))[::-1]
            if self.unit == "episode":
                yield turns, returns_to_go[0]
            else:
                yield from (((turn,), value) for turn, value in zip(turns, returns_to_go, strict=True))

    def _update_index(self) -> None:
        weights = self._weights()
        excess = max(0, len(self._entries) - self.capacity)
        for key in sorted(weights, key=lambda key: weights[key])[
            :excess
        ]:  # sorting leaves equals the oldest first
            del self._entries[key]
        weights = self._weights()
        self._retrieved = {}
        self._by_observation = {}
        for position, (key, entry) in enumerate(self._entries.items()):
            self._by_observation.setdefault(entry.observation_text, []).append(
                (position, weights[key], entry)
            )

    def _weights(self) -> dict[tuple[str, str], float]:
        """The score of each memory at similarity 1."""
        returns = [entry.mean_return for entry in self._entries.values()]
        low, high = min(returns, default=0.0), max(returns, default=0.0)
        return {
            key: (1 - self.return_weight * (high - entry.mean_return) / ((high - low) or 1.0))
            * self._decay(self._rollouts - entry.rollout)
            for key, entry in self._entries.items()
        }

    def _decay(self, age: int) -> float:
        return 1.0 if self.half_life is None else 0.5 ** (age / self.half_life)

    def _nearest(self, query: str) -> tuple[Memory, ...]:
        cutoff = 100 * self.min_similarity
        texts = list(self._by_observation)
        matches = process.extract(query, texts, scorer=fuzz.ratio, score_cutoff=cutoff, limit=None)
        scored = [
            (ratio / 100 * weight, position, ratio / 100, entry)
            for text, ratio, _ in matches
            for position, weight, entry in self._by_observation[text]
        ]
        best = sorted(scored, key=lambda match: match[:2], reverse=True)[: self.top_k]
        return tuple(
            Memory(entry.text, entry.mean_return, self._rollouts - entry.rollout, similarity)
            for _, _, similarity, entry in best
        )
