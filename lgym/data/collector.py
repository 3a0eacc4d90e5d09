"""Plays a rollout: several environments in step, each distinct question put to the policy once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lgym.batch import Rollout
from lgym.data.recorder import Recorder
from lgym.data.refill import Refill
from lgym.data.slot import Slot
from lgym.data.table import ContextTable, ReplyTable
from lgym.envs.workers import WorkerLostError
from lgym.memory import PlayedTurn
from lgym.types import ConfigError, Episode

Progress = Callable[[int, int], None]
"""Told how many episodes (or turns) have been played, and of how many."""

Informed = Callable[[Any], Any]
"""Gives a policy what it need not be asked."""

Remember = Callable[[list[list[PlayedTurn]]], None]
"""Given the turns of every episode that ended in a rollout, in the order of their numbers, when the rollout ends."""


@dataclass
class Ledger:
    """What became of a run's episodes: played = finished + dropped + those that stand in the middle."""

    played: int = 0
    """Begun; one that is begun anew is another."""

    finished: int = 0
    """Played to their end."""

    dropped: int = 0
    """Lost with their worker."""


class Collector:
    """Keeps the environments of one stage and counts their episodes.

    Episode k of a collector is reset with seed `first_seed + k // group_size`, whichever slot plays it. Environments in
    workers play at the same time: all are sent what they have to do before any is waited for.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        first_seed: int,
        kept_transcripts: int = 0,
        group_size: int = 1,
        remember: Remember | None = None,
        refill_groups: int = 0,
        informed: Informed = lambda policy: policy,
    ) -> None:
        """
        Args:
            slots: the environments.
            first_seed: reset seed of the first episode.
            kept_transcripts: of how many episodes a rollout to keep the text.
            group_size: how many episodes in a row start from the same seed.
            remember: what keeps a rollout's episodes in mind; `None` forgets them.
            refill_groups: how many groups a rollout of episodes has more at most, for as many without signal.
            informed: gives a policy that plays the answers that are known already.
        """
        self._group_size = group_size
        self._slots = list(slots)
        self._first_seed = first_seed
        self._kept_transcripts = kept_transcripts
        self._remember = remember
        self._refill_groups = refill_groups
        self._informed = informed
        self._refill = Refill(group_size, 0)
        self._last_episode: int | None = None
        self._ended: dict[int, list[PlayedTurn]] = {}  # this rollout's episodes
        self._transcripts_wanted = 0
        self._episodes_started = 0
        self.ledger = Ledger()
        self.transcripts: list[Episode] = []

    def play(
        self,
        policy: Any,
        rng: np.random.Generator | None,
        *,
        episodes: int | None = None,
        turns: int | None = None,
        progress: Progress = lambda done, total: None,
    ) -> Rollout:
        """Plays so many whole episodes, or so many turns wherever episodes then stand.

        Args:
            policy: a `Policy` or `SpeakingPolicy`, fixed while this plays.
            rng: what actions are sampled with; `None` plays greedily.
            episodes: episodes to start and to finish.
            turns: turns to play over all environments, a multiple of their number; episodes go on in the next rollout.
            progress: called after every step of the environments.
        """
        begun = time.perf_counter()
        going_on = any(slot.history != 0 for slot in self._slots)
        table = (ReplyTable if policy.speaks else ContextTable)(self._informed(policy), going_on=going_on)
        recorder = Recorder(table, len(self._slots), begun)
        self._last_episode = None if episodes is None else self._episodes_started + episodes
        self._refill = Refill(self._group_size, 0 if episodes is None else self._refill_groups)
        self.transcripts, self._ended = [], {}
        self._transcripts_wanted = self._kept_transcripts
        for slot in self._slots:
            slot.transcript = None
        self._start_idle()
        self._settle(recorder)
        while True:
            playing = [i for i, slot in enumerate(self._slots) if slot.live]
            if not playing or (turns is not None and recorder.turns >= turns):
                break
            self._step(playing, recorder, rng)
            if episodes is None:
                progress(recorder.turns, turns or 0)
            else:
                progress(len(recorder.episode_returns), episodes)
        rollout = recorder.rollout()
        if self._remember is not None:
            self._remember([self._ended[number] for number in sorted(self._ended)])
        return rollout

    def _step(self, playing: list[int], recorder: Recorder, rng: np.random.Generator | None) -> None:
        """One turn in each of the playing environments."""
        table = recorder.table
        numbers = np.array([table.number(self._slots[i].context) for i in playing])
        choices, answers = table.act(numbers, rng)
        for i, answer in zip(playing, answers, strict=True):
            self._slots[i].send(answer)
        turns = []
        for i, number, choice in zip(playing, numbers.tolist(), choices.tolist(), strict=True):
            slot = self._slots[i]
            try:
                reward, terminated, truncated = slot.receive()
            except WorkerLostError as lost:
                self._drop(slot, recorder, lost)
                continue
            following = -1 if terminated else table.number(slot.context)
            turns.append((i, number, choice, slot.number, slot.seed, reward, terminated, truncated, slot.parsed, following))
            if slot.transcript is not None:
                slot.record(table.turn(number, choice, reward), terminated, truncated)
            if not slot.live:
                recorder.finish(slot.episode_return, len(slot.answers), slot.episode_penalty)
                self.ledger.finished += 1
                if self._remember is not None:
                    self._ended[slot.number] = slot.turns
                if more := self._refill.ended(slot.number, slot.episode_return):
                    self._last_episode = (self._last_episode or 0) + more
                self._start(slot)
        recorder.add(turns)
        self._start_idle()  # those that had nothing left to play, before the rollout was refilled
        self._settle(recorder)

    def _start_idle(self) -> None:
        for slot in self._slots:
            if not (slot.live or slot.starting):
                self._start(slot)

    def _start(self, slot: Slot) -> None:
        """Starts the next episode in the slot, unless the rollout has had all of its episodes."""
        if slot.transcript is not None:
            self.transcripts.append(slot.transcript)
            slot.transcript = None
        if self._last_episode is not None and self._episodes_started >= self._last_episode:
            return
        keep = self._transcripts_wanted > 0
        self._transcripts_wanted -= keep
        seed = self._first_seed + self._episodes_started // self._group_size
        slot.start(seed, number=self._episodes_started, keep_transcript=keep)
        self._episodes_started += 1
        self.ledger.played += 1

    def _settle(self, recorder: Recorder) -> None:
        """Waits until every episode that has been started stands at its first observation."""
        for slot in self._slots:
            while slot.starting:
                try:
                    slot.ready()
                except WorkerLostError as lost:
                    self._drop(slot, recorder, lost)

    def _drop(self, slot: Slot, recorder: Recorder, lost: WorkerLostError) -> None:
        """Forgets the episode in the slot and starts it anew: so every rollout has its episodes, and a group all of its."""
        warnings.warn(f"{lost} Episode {slot.number} is dropped and begun anew in another worker.", stacklevel=2)
        recorder.drop(slot.number)
        self.ledger.dropped += 1
        slot.restart(lost)
        self.ledger.played += 1

    def state_dict(self) -> dict[str, Any]:
        """Where every environment stands; plain numbers and texts."""
        return {
            "episodes_started": self._episodes_started,
            "ledger": asdict(self.ledger),
            "slots": [slot.state_dict() for slot in self._slots],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings every environment back to where it stood.

        Raises:
            ValueError: if the number of environments has changed while episodes were under way.
        """
        slots = state["slots"]
        if len(slots) != len(self._slots):
            if any(slot is not None for slot in slots):
                raise ConfigError(
                    f"The checkpoint holds {len(slots)} environments in mid-episode and data.num_envs is "
                    f"{len(self._slots)}. Resume with data.num_envs: {len(slots)}."
                )
            slots = [None] * len(self._slots)
        self._episodes_started = state["episodes_started"]
        self.ledger = Ledger(**state["ledger"])
        for slot, slot_state in zip(self._slots, slots, strict=True):
            slot.load_state_dict(slot_state)

    def close(self) -> None:
        for slot in self._slots:
            slot.close()
