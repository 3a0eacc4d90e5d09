"""The record of a rollout, turn by turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lgym.data.rollout.prompt_table import PromptTable
from lgym.rollout import Rollout

TURN = np.dtype(
    [
        ("stream", np.int64),  # which environment, 0 to E - 1
        ("prompt", np.int64),
        ("response", np.int64),
        ("episode", np.int64),
        ("seed", np.int64),
        ("reward", np.float32),
        ("terminated", bool),
        ("truncated", bool),
        ("parsed", bool),
        ("next_prompt", np.int64),  # that of the observation that the turn led to; -1 where it terminated
    ]
)


@dataclass
class EpisodeCounts:
    """The episodes of a run: played = finished + dropped + those under way."""

    played: int = 0
    """Begun; one that is begun anew is another."""

    finished: int = 0
    """Played to their end."""

    dropped: int = 0
    """Lost with their process."""

    turns: int = 0
    """Turns of all of them but the dropped."""


class Recorder:
    """Records one rollout, a step of all playing environments at a time."""

    def __init__(self, table: PromptTable, num_envs: int, start: float) -> None:
        """
        Args:
            table: of the prompts and responses.
            num_envs: environments that play.
            start: of playing, by `time.perf_counter`.
        """
        self.table = table
        self.turns = 0
        self.episode_returns: list[float] = []
        self._episode_lengths: list[int] = []
        self._episode_penalties: list[float] = []
        self._dropped = 0
        self._num_envs = num_envs
        self._steps: list[np.ndarray] = []
        self._start = start

    def add(self, turns: Sequence[tuple[Any, ...]]) -> None:
        """One step: a turn, with the fields of `TURN`, of each environment that has played."""
        self._steps.append(np.array(turns, dtype=TURN))
        self.turns += len(turns)

    def finish(self, episode_return: float, length: int, penalty: float) -> None:
        """Record the end of an episode, and the agent's own penalty in its return."""
        self.episode_returns.append(episode_return)
        self._episode_lengths.append(length)
        self._episode_penalties.append(penalty)

    def drop(self, episode: int) -> int:
        """Drop the turns of an episode that was lost; how many there were."""
        before = self.turns
        self._steps = [turns[turns["episode"] != episode] for turns in self._steps]
        self.turns = sum(map(len, self._steps))
        self._dropped += 1
        return before - self.turns

    def rollout(self, counts: EpisodeCounts) -> Rollout:
        """The rollout, as [E, N] tensors, with what the run has counted so far."""
        self.table.complete()
        turns = np.concatenate(self._steps)
        step = np.repeat(np.arange(len(self._steps)), [len(turns) for turns in self._steps])

        def laid_out(column: np.ndarray, idle: Any = 0) -> np.ndarray:
            grid = np.full((self._num_envs, len(self._steps)), idle, dtype=column.dtype)
            grid[turns["stream"], step] = column
            return grid

        next_prompt = turns["next_prompt"]
        mask = laid_out(np.ones(len(turns), dtype=bool))
        terminated = laid_out(turns["terminated"], idle=True)
        truncated = laid_out(turns["truncated"] & ~turns["terminated"])
        cut = np.zeros_like(mask)
        cut[:, -1] = (
            mask[:, -1] & ~terminated[:, -1] & ~truncated[:, -1]
        )  # the rollout ends here, the episode does not
        columns = {
            "prompt_index": laid_out(turns["prompt"]),
            "response_index": laid_out(turns["response"]),
            "rewards": laid_out(turns["reward"]),
            "terminated": terminated,
            "truncated": truncated | cut,
            "cut": cut,
            "mask": mask,
            "parsed": laid_out(turns["parsed"], idle=True),
            "episode_ids": laid_out(turns["episode"]),
            "reset_seeds": laid_out(turns["seed"]),
            "next_values": laid_out(
                np.where(next_prompt >= 0, self.table.values[next_prompt], np.float32(0.0))
            ),
        }
        fields: dict[str, Any] = {name: torch.from_numpy(column) for name, column in columns.items()}
        return Rollout(
            **self.table.record(),
            **fields,
            episode_returns=torch.tensor(self.episode_returns, dtype=torch.float32),
            episode_lengths=torch.tensor(self._episode_lengths, dtype=torch.float32),
            episode_penalties=torch.tensor(self._episode_penalties, dtype=torch.float32),
            seconds=time.perf_counter() - self._start,
            total_turns=counts.turns,
            total_episodes=counts.finished,
            episodes_dropped=self._dropped,
        )
