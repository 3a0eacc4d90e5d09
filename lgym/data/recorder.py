"""Turns as they are played, and the rollout that they make."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lgym.batch import Rollout
from lgym.data.table import ContextTable, ReplyTable

TURN = np.dtype(
    [
        ("stream", np.int64),  # which environment, 0 to E - 1
        ("context", np.int64),
        ("choice", np.int64),
        ("episode", np.int64),
        ("seed", np.int64),
        ("reward", np.float32),
        ("terminated", bool),
        ("truncated", bool),
        ("parsed", bool),
        ("following", np.int64),  # the context of the observation that the turn led to; -1 where it terminated
    ]
)


class Recorder:
    """Keeps one rollout, a step of all playing environments at a time."""

    def __init__(self, table: ContextTable | ReplyTable, num_envs: int, begun: float) -> None:
        """
        Args:
            table: of the contexts.
            num_envs: environments that play.
            begun: when they began, by `time.perf_counter`.
        """
        self.table = table
        self.turns = 0
        self.episode_returns: list[float] = []
        self._episode_lengths: list[int] = []
        self._episode_penalties: list[float] = []
        self._dropped = 0
        self._num_envs = num_envs
        self._steps: list[np.ndarray] = []
        self._begun = begun

    def add(self, turns: Sequence[tuple[Any, ...]]) -> None:
        """One step: a turn, with the fields of `TURN`, of each environment that has played."""
        self._steps.append(np.array(turns, dtype=TURN))
        self.turns += len(turns)

    def finish(self, episode_return: float, length: int, penalty: float) -> None:
        """An episode has ended, with so much of its return being the agent's own penalty."""
        self.episode_returns.append(episode_return)
        self._episode_lengths.append(length)
        self._episode_penalties.append(penalty)

    def drop(self, episode: int) -> None:
        """Forgets what was played of an episode so far."""
        self._steps = [turns[turns["episode"] != episode] for turns in self._steps]
        self.turns = sum(map(len, self._steps))
        self._dropped += 1

    def rollout(self) -> Rollout:
        """Everything recorded, as [E, N] tensors."""
        self.table.complete()
        turns = np.concatenate(self._steps)
        step = np.repeat(np.arange(len(self._steps)), [len(turns) for turns in self._steps])

        def laid_out(column: np.ndarray, idle: Any = 0) -> np.ndarray:
            grid = np.full((self._num_envs, len(self._steps)), idle, dtype=column.dtype)
            grid[turns["stream"], step] = column
            return grid

        following = turns["following"]
        mask = laid_out(np.ones(len(turns), dtype=bool))
        terminated = laid_out(turns["terminated"], idle=True)
        truncated = laid_out(turns["truncated"] & ~turns["terminated"])
        cut = np.zeros_like(mask)
        cut[:, -1] = mask[:, -1] & ~terminated[:, -1] & ~truncated[:, -1]  # the rollout ends here, the episode does not
        columns = {
            "context_ids": laid_out(turns["context"]),
            "choices": laid_out(turns["choice"]),
            "rewards": laid_out(turns["reward"]),
            "terminated": terminated,
            "truncated": truncated | cut,
            "cut": cut,
            "mask": mask,
            "parsed": laid_out(turns["parsed"], idle=True),
            "episode_ids": laid_out(turns["episode"]),
            "reset_seeds": laid_out(turns["seed"]),
            "next_values": laid_out(np.where(following >= 0, self.table.values[following], np.float32(0.0))),
        }
        fields: dict[str, Any] = {name: torch.from_numpy(column) for name, column in columns.items()}
        return Rollout(
            **self.table.record(),
            **fields,
            episode_returns=torch.tensor(self.episode_returns, dtype=torch.float32),
            episode_lengths=torch.tensor(self._episode_lengths, dtype=torch.float32),
            episode_penalties=torch.tensor(self._episode_penalties, dtype=torch.float32),
            play_seconds=time.perf_counter() - self._begun,
            episodes_dropped=self._dropped,
        )
