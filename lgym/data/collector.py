"""Plays a rollout: several environments in step, each distinct question put to the policy once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lgym.batch import Rollout
from lgym.data.slot import Slot
from lgym.data.table import ContextTable, ReplyTable
from lgym.types import Episode

Progress = Callable[[int, int], None]
"""Told how many episodes (or turns) have been played, and of how many."""


class Collector:
    """Keeps the environments of one stage and counts their episodes.

    Episode k of a collector is reset with seed `first_seed + k // group_size`, whichever slot plays it.
    """

    def __init__(self, slots: Sequence[Slot], first_seed: int, kept_transcripts: int = 0, group_size: int = 1) -> None:
        """
        Args:
            slots: the environments.
            first_seed: reset seed of the first episode.
            kept_transcripts: of how many episodes a rollout to keep the text.
            group_size: how many episodes in a row start from the same seed.
        """
        self._group_size = group_size
        self._slots = list(slots)
        self._first_seed = first_seed
        self._kept_transcripts = kept_transcripts
        self._transcripts_wanted = 0
        self._episodes_started = 0
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
        started = time.perf_counter()
        table = ReplyTable(policy) if policy.speaks else ContextTable(policy)
        recorder = _Recorder(table, len(self._slots))
        last_episode = None if episodes is None else self._episodes_started + episodes
        self.transcripts = []
        self._transcripts_wanted = self._kept_transcripts
        for slot in self._slots:
            slot.transcript = None
            if not slot.live:
                self._start(slot, last_episode)
        while True:
            playing = [i for i, slot in enumerate(self._slots) if slot.live]
            if not playing or (turns is not None and recorder.turns >= turns):
                break
            self._step(playing, recorder, rng, last_episode)
            if episodes is None:
                progress(recorder.turns, turns or 0)
            else:
                progress(len(recorder.episode_returns), episodes)
        return recorder.rollout(started)

    def _step(
        self, playing: list[int], recorder: _Recorder, rng: np.random.Generator | None, last_episode: int | None
    ) -> None:
        """One turn in each of the playing environments."""
        table = recorder.table
        numbers = np.array([table.number(self._slots[i].context) for i in playing])
        choices, answers = table.act(numbers, rng)
        origins = [(self._slots[i].number, self._slots[i].seed) for i in playing]
        outcomes: list[tuple[float, bool, bool, bool, int]] = []
        for i, number, choice, answer in zip(playing, numbers.tolist(), choices.tolist(), answers, strict=True):
            slot = self._slots[i]
            reward, terminated, truncated = slot.step(answer)
            following = -1 if terminated else table.number(slot.context)
            outcomes.append((reward, terminated, truncated, slot.parsed, following))
            if slot.transcript is not None:
                slot.record(table.turn(number, choice, reward), terminated, truncated)
            if not slot.live:
                recorder.finish(slot)
                self._start(slot, last_episode)
        recorder.add(playing, numbers, choices, origins, outcomes)

    def _start(self, slot: Slot, last_episode: int | None) -> None:
        """Starts the next episode in the slot, unless the rollout has had all of its episodes."""
        if slot.transcript is not None:
            self.transcripts.append(slot.transcript)
            slot.transcript = None
        if last_episode is not None and self._episodes_started >= last_episode:
            return
        keep = self._transcripts_wanted > 0
        self._transcripts_wanted -= keep
        seed = self._first_seed + self._episodes_started // self._group_size
        slot.reset(seed, number=self._episodes_started, keep_transcript=keep)
        self._episodes_started += 1

    def state_dict(self) -> dict[str, Any]:
        """Where every environment stands; plain numbers and texts."""
        return {"episodes_started": self._episodes_started, "slots": [slot.state_dict() for slot in self._slots]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings every environment back to where it stood.

        Raises:
            ValueError: if the number of environments has changed while episodes were under way.
        """
        slots = state["slots"]
        if len(slots) != len(self._slots):
            if any(slot is not None for slot in slots):
                raise ValueError(
                    f"The checkpoint holds {len(slots)} environments in mid-episode and data.num_envs is "
                    f"{len(self._slots)}. Resume with data.num_envs: {len(slots)}."
                )
            slots = [None] * len(self._slots)
        self._episodes_started = state["episodes_started"]
        for slot, slot_state in zip(self._slots, slots, strict=True):
            slot.load_state_dict(slot_state)

    def close(self) -> None:
        for slot in self._slots:
            slot.close()


class _Recorder:
    """Columns of turns, a step of all playing environments at a time."""

    def __init__(self, table: ContextTable | ReplyTable, num_envs: int) -> None:
        self.table = table
        self.turns = 0
        self.episode_returns: list[float] = []
        self._episode_lengths: list[int] = []
        self._num_envs = num_envs
        self._steps: list[tuple[np.ndarray, ...]] = []

    def add(
        self,
        playing: list[int],
        numbers: np.ndarray,
        choices: np.ndarray,
        origins: list[tuple[int, int]],
        outcomes: list[tuple[float, bool, bool, bool, int]],
    ) -> None:
        rewards, terminated, truncated, parsed, following = zip(*outcomes, strict=True)
        self._steps.append(
            (
                np.array(playing),
                numbers,
                choices,
                np.array(origins).T,
                np.array(rewards, dtype=np.float32),
                np.array(terminated),
                np.array(truncated),
                np.array(parsed),
                np.array(following),
            )
        )
        self.turns += len(playing)

    def finish(self, slot: Slot) -> None:
        self.episode_returns.append(slot.episode_return)
        self._episode_lengths.append(len(slot.answers))

    def rollout(self, started: float) -> Rollout:
        """Everything recorded, as [E, N] tensors."""
        self.table.evaluate()  # the observations that nobody acted on, whose values bootstrap
        shape = (self._num_envs, len(self._steps))
        numbers, choices = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        rewards, next_values = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
        terminated, truncated, mask = (
            np.ones(shape, dtype=bool),
            np.zeros(shape, dtype=bool),
            np.zeros(shape, dtype=bool),
        )
        origins = np.zeros((2, *shape), dtype=np.int64)
        parsed = np.ones(shape, dtype=bool)
        for n, (playing, step_numbers, step_choices, origin, reward, term, trunc, read, following) in enumerate(self._steps):
            parsed[playing, n] = read
            origins[:, playing, n] = origin
            numbers[playing, n], choices[playing, n], rewards[playing, n] = step_numbers, step_choices, reward
            terminated[playing, n], truncated[playing, n], mask[playing, n] = term, trunc & ~term, True
            next_values[playing, n] = np.where(following >= 0, self.table.values[following], 0.0)
        truncated[:, -1] |= mask[:, -1] & ~terminated[:, -1]  # the rollout ends here, the episode may not
        return Rollout(
            **self.table.record(),
            context_ids=torch.from_numpy(numbers),
            choices=torch.from_numpy(choices),
            rewards=torch.from_numpy(rewards),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            mask=torch.from_numpy(mask),
            parsed=torch.from_numpy(parsed),
            episode_ids=torch.from_numpy(origins[0]),
            reset_seeds=torch.from_numpy(origins[1]),
            next_values=torch.from_numpy(next_values),
            episode_returns=torch.tensor(self.episode_returns, dtype=torch.float32),
            episode_lengths=torch.tensor(self._episode_lengths, dtype=torch.float32),
            play_seconds=time.perf_counter() - started,
        )
