"""The record of a rollout, turn by turn."""

import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lgym.data.rollout.env_runner import EnvRunner
from lgym.data.rollout.prompt_table import PromptTable
from lgym.memory import RememberedTurn
from lgym.rollout import Rollout
from lgym.types import Episode

TURN = np.dtype(
    [
        ("stream", np.int64),  # which environment, 0 to E - 1
        ("prompt_index", np.int64),
        ("response_index", np.int64),
        ("episode_ids", np.int64),
        ("reset_seeds", np.int64),
        ("rewards", np.float64),
        ("terminated", bool),
        ("truncated", bool),
        ("parsed", bool),
        ("next_prompt", np.int64),  # that of the observation that the turn led to; -1 where it terminated
    ]
)
IDLE = np.array((-1, 0, 0, 0, 0, 0.0, True, False, True, -1), dtype=TURN)
"""A stream's turn while it has nothing to play."""


@dataclass
class EpisodeCounts:
    """The episodes of a run: played = finished + dropped + those under way.

    Attributes:
        played: begun; one that is begun anew is another.
        finished: played to their end.
        dropped: lost with their process.
        turns: turns of all of them but the dropped.
    """

    played: int = 0
    finished: int = 0
    dropped: int = 0
    turns: int = 0


class Recorder:
    """Records one rollout, a step of all playing environments at a time.

    Args:
        table: the prompts and responses.
        num_envs: environments that play.
        counts: of the run; those of this rollout are added.
    """

    def __init__(self, table: PromptTable, num_envs: int, counts: EpisodeCounts) -> None:
        self.table = table
        self.finished: dict[int, tuple[float, int, float]] = {}  # return, length and penalty, by number
        self.remembered: dict[int, list[RememberedTurn]] = {}  # of the same episodes
        self._num_envs = num_envs
        self._counts = counts
        self._counts_before = replace(counts)
        self._steps: list[np.ndarray] = []
        self._start = time.perf_counter()

    @property
    def turns(self) -> int:
        """Turns of the rollout so far."""
        return self._counts.turns - self._counts_before.turns

    def add(self, turns: Sequence[tuple[Any, ...]]) -> None:
        """One step: a turn, with the fields of `TURN`, of each environment that has played."""
        self._steps.append(np.array(turns, dtype=TURN))
        self._counts.turns += len(turns)

    def finish(self, runner: EnvRunner) -> None:
        """Record the end of a runner's episode."""
        self.finished[runner.number] = (
            runner.episode_return,
            len(runner.responses),
            runner.episode_penalty,
        )
        self.remembered[runner.number] = runner.prompts.turns
        self._counts.finished += 1

    def drop(self, episode: int) -> None:
        """Drop the turns of an episode that was lost."""
        lost = [turns["episode_ids"] == episode for turns in self._steps]
        self._steps = [turns[~rows] for turns, rows in zip(self._steps, lost, strict=True)]
        self._counts.turns -= sum(int(rows.sum()) for rows in lost)
        self._counts.dropped += 1

    def transcripts(self, numbers: Container[int], system_prompt: str) -> list[Episode]:
        """The finished episodes of these numbers, as a person reads them."""
        turns = np.concatenate(self._steps)
        transcripts = []
        for number in [number for number in self.finished if number in numbers]:
            played = turns[turns["episode_ids"] == number]
            shown = [
                self.table.turn(*turn)
                for turn in played[["prompt_index", "response_index", "rewards"]].tolist()
            ]
            seed, *ending = played[["reset_seeds", "terminated", "truncated"]][-1].item()
            transcripts.append(Episode(seed, system_prompt, shown, *ending))
        return transcripts

    def rollout(self) -> Rollout:
        """The rollout, as [E, N] tensors, with what the run has counted so far."""
        table = self.table
        table.complete()
        grid = np.full((self._num_envs, len(self._steps)), IDLE)
        for step, turns in enumerate(self._steps):
            grid[turns["stream"], step] = turns
        mask = grid["stream"] >= 0
        terminated = grid["terminated"]
        truncated = grid["truncated"] & ~terminated
        cut = np.zeros_like(mask)
        cut[:, -1] = (mask & ~terminated & ~truncated)[:, -1]  # the rollout ends here, the episode does not
        columns = {
            "prompt_index": grid["prompt_index"],
            "response_index": grid["response_index"],
            "rewards": grid["rewards"].astype(np.float32),
            "terminated": terminated,
            "truncated": truncated | cut,
            "cut": cut,
            "mask": mask,
            "parsed": grid["parsed"],
            "episode_ids": grid["episode_ids"],
            "reset_seeds": grid["reset_seeds"],
            "next_values": np.where(terminated, np.float32(0.0), table.values[grid["next_prompt"]]),
        }
        fields: dict[str, Any] = {name: torch.from_numpy(column.copy()) for name, column in columns.items()}
        ends = torch.tensor(list(self.finished.values()), dtype=torch.float32).reshape(-1, 3)
        return Rollout(
            prompts=tuple(table.prompts),
            prompt_values=torch.from_numpy(table.values),
            responses=tuple(table.responses),
            **fields,
            episode_returns=ends[:, 0].clone(),
            episode_lengths=ends[:, 1].clone(),
            episode_penalties=ends[:, 2].clone(),
            seconds=time.perf_counter() - self._start,
            total_turns=self._counts.turns,
            total_episodes=self._counts.finished,
            episodes_dropped=self._counts.dropped - self._counts_before.dropped,
        )
