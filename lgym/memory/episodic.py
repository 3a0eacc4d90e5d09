"""Episodic memory: turns or episodes of the past, retrieved by their observations."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Literal

from rapidfuzz import fuzz, process

from lgym.memory.entries import Memory, RememberedTurn
from lgym.types import ConfigError

Summarize = Callable[[Sequence[RememberedTurn]], str]

CACHED_QUERIES = 100_000  # observations whose memories are cached; beyond it the cache is cleared


@dataclass
class _Entry:
    observation_text: str
    content: str  # with the observation: the identity of the memory
    text: str = ""
    total: float = 0.0  # of its returns, each halved by age
    count: float = 0.0  # of returns in the total, halved likewise
    rollout: int = 0  # the last in which it happened

    @property
    def mean_return(self) -> float:
        return self.total / self.count


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
        for name, value, is_valid, rule in (
            ("top_k", top_k, top_k >= 1, "be 1 or more"),
            ("capacity", capacity, capacity >= 1, "be 1 or more"),
            ("max_characters", max_characters, max_characters >= 1, "be 1 or more"),
            ("min_similarity", min_similarity, 0 <= min_similarity <= 1, "lie between 0 and 1"),
            ("return_weight", return_weight, 0 <= return_weight <= 1, "lie between 0 and 1"),
            ("half_life", f"{half_life} rollouts", half_life is None or half_life > 0, "be above 0, or null"),
        ):
            if not is_valid:
                raise ConfigError(f"The episodic memory's {name} is {value}; it must {rule}.")
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
        for turns, value in self._units(episodes):
            content = turns[0].answer if self.unit == "turn" else summarize(turns)
            key = (turns[0].observation_text, content)
            entry = self._entries.pop(key, None) or _Entry(*key)
            if entry.rollout < self._rollouts:
                decay = self._decay(self._rollouts - entry.rollout)
                entry.total *= decay
                entry.count *= decay
                entry.rollout = self._rollouts
                entry.text = summarize(turns)
                if len(entry.text) > self.max_characters:
                    entry.text = entry.text[: self.max_characters - 1] + "…"
            entry.total += value
            entry.count += 1
            self._entries[key] = entry
        self._update_index()

    def state_dict(self) -> dict[str, Any]:
        """All memories, the oldest first; plain numbers and texts."""
        return {
            "unit": self.unit,
            "rollouts": self._rollouts,
            "entries": list(map(asdict, self._entries.values())),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` wrote. Raises `ValueError` for memories of another unit."""
        if state["unit"] != self.unit:
            raise ConfigError(
                f"The checkpoint remembers by the {state['unit']} and data.episodic_memory.unit is "
                f"{self.unit}. Go on with unit: {state['unit']}, or train anew."
            )
        self._rollouts = state["rollouts"]
        self._entries = {
            (fields["observation_text"], fields["content"]): _Entry(**fields) for fields in state["entries"]
        }
        self._update_index()

    def _units(
        self, episodes: Iterable[Sequence[RememberedTurn]]
    ) -> Iterator[tuple[Sequence[RememberedTurn], float]]:
        for turns in episodes:
            returns_to_go = list(accumulate(turn.reward for turn in reversed(turns)))[::-1]
            if self.unit == "episode":
                yield turns, returns_to_go[0]
            else:
                yield from zip([(turn,) for turn in turns], returns_to_go, strict=True)

    def _update_index(self) -> None:
        weights = self._weights()
        excess = max(0, len(self._entries) - self.capacity)
        for key in sorted(weights, key=weights.__getitem__)[:excess]:  # of equals the oldest first
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
        matches = process.extract(
            query,
            list(self._by_observation),
            scorer=fuzz.ratio,
            score_cutoff=100 * self.min_similarity,
            limit=None,
        )
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
