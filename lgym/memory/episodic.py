"""What happened in earlier episodes, found again by what was observed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any, Literal

from rapidfuzz import fuzz, process

from lgym.memory.records import Memory, PlayedTurn
from lgym.types import ConfigError

Summarise = Callable[[Sequence[PlayedTurn]], str]

CACHED_QUESTIONS = 100_000
"""Observations whose memories are kept at hand. Beyond it forgets them all and looks anew."""


@dataclass
class _Entry:
    observation_text: str
    what: str  # with the observation: which memory it is
    text: str
    mean_return: float
    count: float  # of returns in the mean, each halved by age
    rollout: int  # the last in which it happened


class EpisodicMemory:
    """Turns or whole episodes with what they returned; the nearest to an observation come back, the best and newest first.

        score = similarity * (1 - return_weight * (1 - r)) * 0.5 ** (age / half_life)

    Similarity is rapidfuzz's `fuzz.ratio` of the two observations' texts, from 0 to 1. r is the memory's mean return, from 0
    for the lowest of all that are stored to 1 for the highest (1 if all are equal). Age counts the rollouts since it
    happened last. Of equal scores the newest comes first.

    A turn is found by its observation; an episode by its first one, in every turn of an episode that began like it. Turns
    with the same observation and answer are one memory, and so are episodes that began alike and have the same summary: it
    is as old as the last of them, and its return is their mean, in which a return counts half after each `half_life`.

    A rollout's episodes are stored when the rollout ends, so that all of it recalls the same.
    """

    def __init__(
        self,
        unit: Literal["turn", "episode"] = "turn",
        retrieve: int = 2,
        capacity: int = 1000,
        min_similarity: float = 0.6,
        return_weight: float = 0.5,
        half_life: float | None = 10.0,
        max_characters: int = 200,
    ) -> None:
        """
        Args:
            unit: what one memory is: a turn, or an episode.
            retrieve: memories shown at most.
            capacity: memories stored at most; the one with the lowest score leaves first, all taken as similar, and of
                equals the oldest.
            min_similarity: from which on a memory may be shown; 1 for the same observation only.
            return_weight: how much returns count beside similarity, 0 to 1.
            half_life: rollouts in which a memory's score halves; null leaves age aside.
            max_characters: of one memory's text; the beginning of a longer one is kept.
        """
        for name, count in (("retrieve", retrieve), ("capacity", capacity), ("max_characters", max_characters)):
            if count < 1:
                raise ConfigError(f"The episodic memory's {name} is {count}; it must be 1 or more.")
        for name, share in (("min_similarity", min_similarity), ("return_weight", return_weight)):
            if not 0 <= share <= 1:
                raise ConfigError(f"The episodic memory's {name} is {share}; it must lie between 0 and 1.")
        if half_life is not None and half_life <= 0:
            raise ConfigError(f"The episodic memory's half_life is {half_life} rollouts; it must be above 0, or null.")
        self.unit, self.retrieve, self.capacity, self.min_similarity = unit, retrieve, capacity, min_similarity
        self.return_weight, self.half_life, self.max_characters = return_weight, half_life, max_characters
        self._rollouts = 0
        self._entries: dict[tuple[str, str], _Entry] = {}  # the oldest first
        self._by_observation: dict[str, list[tuple[int, float, _Entry]]] = {}  # their places and weights
        self._recalled: dict[str, tuple[Memory, ...]] = {}

    def __len__(self) -> int:
        """Memories stored."""
        return len(self._entries)

    def similar(self, turns: Sequence[PlayedTurn], observation_text: str) -> tuple[Memory, ...]:
        """What comes to mind at an observation after these turns of its episode, the highest score first."""
        question = turns[0].observation_text if self.unit == "episode" and turns else observation_text
        if question not in self._recalled:
            if len(self._recalled) >= CACHED_QUESTIONS:
                self._recalled.clear()
            self._recalled[question] = self._nearest(question)
        return self._recalled[question]

    def store(self, episodes: Iterable[Sequence[PlayedTurn]], summarise: Summarise) -> None:
        """Takes the episodes that ended in a rollout, in the order of their numbers."""
        self._rollouts += 1
        for entry in self._happened(episodes, summarise):
            key = (entry.observation_text, entry.what)
            known = self._entries.pop(key, None)
            if known is not None:
                before = known.count * self._fading(entry.rollout - known.rollout)
                total = before * known.mean_return + entry.count * entry.mean_return
                entry.count += before
                entry.mean_return = total / entry.count
            self._entries[key] = entry
        self._arrange()

    def state_dict(self) -> dict[str, Any]:
        """All memories, the oldest first; plain numbers and texts."""
        return {"unit": self.unit, "rollouts": self._rollouts, "entries": list(map(astuple, self._entries.values()))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings back what `state_dict` wrote. Raises `ValueError` for memories of another unit."""
        if state["unit"] != self.unit:
            raise ConfigError(
                f"The checkpoint remembers by the {state['unit']} and data.episodic_memory.unit is {self.unit}. Go on with "
                f"unit: {state['unit']}, or train anew."
            )
        self._rollouts = state["rollouts"]
        entries = [_Entry(*fields) for fields in state["entries"]]
        self._entries = {(entry.observation_text, entry.what): entry for entry in entries}
        self._arrange()

    def _happened(self, episodes: Iterable[Sequence[PlayedTurn]], summarise: Summarise) -> list[_Entry]:
        """What a rollout adds, each memory once, in the order in which they happened last."""
        found: dict[tuple[str, str], tuple[Sequence[PlayedTurn], list[float]]] = {}
        for turns, paid in self._parts(episodes):
            key = (turns[0].observation_text, turns[0].answer if self.unit == "turn" else summarise(turns))
            _, returns = found.pop(key, (turns, []))
            found[key] = (turns, [*returns, paid])
        return [
            _Entry(seen, what, self._short(summarise(turns)), fmean(returns), len(returns), self._rollouts)
            for (seen, what), (turns, returns) in found.items()
        ]

    def _parts(self, episodes: Iterable[Sequence[PlayedTurn]]) -> Iterator[tuple[Sequence[PlayedTurn], float]]:
        """What is remembered one by one, with what it returned."""
        for turns in episodes:
            to_come = list(accumulate(turn.reward for turn in reversed(turns)))[::-1]
            if self.unit == "episode":
                yield turns, to_come[0]
            else:
                yield from (((turn,), paid) for turn, paid in zip(turns, to_come, strict=True))

    def _arrange(self) -> None:
        """Forgets what is too much, and weighs the rest by return and age."""
        weights = self._weights()
        excess = max(0, len(self._entries) - self.capacity)
        for key in sorted(weights, key=lambda key: weights[key])[:excess]:  # sorting leaves equals the oldest first
            del self._entries[key]
        weights = self._weights()
        self._recalled, self._by_observation = {}, {}
        for place, (key, entry) in enumerate(self._entries.items()):
            self._by_observation.setdefault(entry.observation_text, []).append((place, weights[key], entry))

    def _weights(self) -> dict[tuple[str, str], float]:
        """Of each memory its score if it were all alike."""
        returns = [entry.mean_return for entry in self._entries.values()]
        low, high = min(returns, default=0.0), max(returns, default=0.0)
        return {
            key: (1 - self.return_weight * (high - entry.mean_return) / ((high - low) or 1.0))
            * self._fading(self._rollouts - entry.rollout)
            for key, entry in self._entries.items()
        }

    def _fading(self, age: int) -> float:
        return 1.0 if self.half_life is None else 0.5 ** (age / self.half_life)

    def _nearest(self, question: str) -> tuple[Memory, ...]:
        seen = list(self._by_observation)
        near = process.extract(question, seen, scorer=fuzz.ratio, score_cutoff=100 * self.min_similarity, limit=None)
        scored = [
            (ratio / 100 * weight, place, ratio / 100, entry)
            for text, ratio, _ in near
            for place, weight, entry in self._by_observation[text]
        ]
        best = sorted(scored, key=lambda found: found[:2], reverse=True)[: self.retrieve]
        return tuple(
            Memory(entry.text, entry.mean_return, self._rollouts - entry.rollout, similarity)
            for _, _, similarity, entry in best
        )

    def _short(self, text: str) -> str:
        return text if len(text) <= self.max_characters else text[: self.max_characters - 1] + "…"
