"""The record of a rollout: its distinct prompts, every response that the policy gave, and turn by turn what
happened."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lgym.data.rollout.env_runner import EnvRunner
from lgym.memory import RememberedTurn
from lgym.phases import part
from lgym.rollout import EpisodeStatistics, Prompt, Response, Rollout
from lgym.types import Policy, Turn

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
        ("first_visits", np.int64),  # digest of that observation, if the episode had not been there; else 0
    ]
)
IDLE = np.array((-1, 0, 0, 0, 0, 0.0, True, False, True, -1, 0), dtype=TURN)
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


Outcome = tuple[float, int, float, float | None]
"""Return, length, penalty and success of an episode; `None` where nobody said whether it succeeded."""


class PromptTable:
    """Numbers prompts in the order in which they come up, and holds the policy's responses and values.

    Args:
        policy: the policy that acts.
        keep_kv_cache: whether later prompts extend those that were acted on.
    """

    def __init__(self, policy: Policy, *, keep_kv_cache: bool = True) -> None:
        self._policy = policy
        self._keep_kv_cache = keep_kv_cache
        self._index: dict[Prompt, int] = {}
        # Numbers by identity: policies give one object for equal choices.
        self._responses: dict[int, int] = {}
        self.prompts: list[Prompt] = []
        self.responses: list[Response] = []
        self.values = np.zeros(0, dtype=np.float32)  # [U], NaN where not known

    def index(self, prompt: Prompt) -> int:
        """The prompt's number; a new one if it has not come up yet."""
        number = self._index.setdefault(prompt, len(self.prompts))
        if number == len(self.prompts):
            self.prompts.append(prompt)
        return number

    def act(self, prompt_index: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """The numbers of the responses to n numbered prompts: sampled, or without `rng` the likeliest."""
        prompts = [self.prompts[number] for number in prompt_index.tolist()]
        new = self.prompts[len(self.values) :]
        with part("policy"):
            responses, values = self._policy.act(
                prompts, rng, keep_kv_cache=self._keep_kv_cache, bootstrap=new
            )
        self._extend_values()
        self.values[prompt_index] = values.float().numpy()
        return np.array([self._number(response) for response in responses])

    def complete(self) -> None:
        """Compute the values of the prompts that were not acted on, which bootstrap; without a critic they
        stay NaN."""
        self._extend_values()
        missing = np.isnan(self.values).nonzero()[0]
        if len(missing) and self._policy.has_critic:
            with part("policy"):
                values = self._policy.values([self.prompts[n] for n in missing])
            self.values[missing] = values.float().numpy()

    def turn(self, prompt_number: int, response_number: int, reward: float) -> Turn:
        """A turn as a person reads it."""
        prompt, response = self.prompts[prompt_number], self.responses[response_number]
        value = self.values[prompt_number]
        probabilities = np.exp(np.array(response.candidate_logprobs, dtype=np.float32)).tolist()
        return Turn(
            observation_text=prompt.observation_text,
            response_text=response.text,
            reward=reward,
            value=None if np.isnan(value) else float(value),
            probabilities=dict(zip(prompt.candidates, probabilities, strict=True)) if probabilities else {},
        )

    def _number(self, response: Response) -> int:
        number = self._responses.setdefault(id(response), len(self.responses))
        if number == len(self.responses):
            self.responses.append(response)
        return number

    def _extend_values(self) -> None:
        self.values = np.pad(self.values, (0, len(self.prompts) - len(self.values)), constant_values=np.nan)


class Recorder:
    """Records one rollout, a step of all playing environments at a time.

    Args:
        table: the prompts and responses.
        num_envs: environments that play.
        counts: of the run; those of this rollout are added.
        latest: the outcome of each environment's last finished episode; those that end here replace them.
    """

    def __init__(
        self, table: PromptTable, num_envs: int, counts: EpisodeCounts, latest: list[Outcome | None]
    ) -> None:
        self.table = table
        self.latest = latest
        self.finished: dict[int, Outcome] = {}  # by the episode's number
        self.return_sum = 0.0  # of these
        self._ended: list[list[Outcome]] = [[] for _ in range(num_envs)]  # the same, by environment
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

    def finish(self, stream: int, runner: EnvRunner) -> None:
        """Record the end of an episode in the environment of that number."""
        self.finished[runner.number] = self.latest[stream] = runner.outcome
        self._ended[stream].append(runner.outcome)
        self.return_sum += runner.outcome[0]
        self.remembered[runner.number] = runner.prompts.turns
        self._counts.finished += 1

    def drop(self, episode: int) -> None:
        """Drop the turns of an episode that was lost."""
        lost = [turns["episode_ids"] == episode for turns in self._steps]
        self._steps = [turns[~rows] for turns, rows in zip(self._steps, lost, strict=True)]
        self._counts.turns -= sum(int(rows.sum()) for rows in lost)
        self._counts.dropped += 1

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
            "next_prompt_index": grid["next_prompt"],
            "first_visits": grid["first_visits"],
            "next_values": np.where(terminated, np.float32(0.0), table.values[grid["next_prompt"]]),
        }
        fields: dict[str, Any] = {name: torch.from_numpy(column.copy()) for name, column in columns.items()}
        ended = _statistics(list(self.finished.values()))
        return Rollout(
            prompts=tuple(table.prompts),
            prompt_values=torch.from_numpy(table.values),
            responses=tuple(table.responses),
            **fields,
            episode_returns=ended.returns,
            episode_lengths=ended.lengths,
            episode_penalties=ended.penalties,
            episode_successes=ended.successes,
            seconds=time.perf_counter() - self._start,
            latest_episodes=_statistics(self._latest_episodes()),
            total_turns=self._counts.turns,
            total_episodes=self._counts.finished,
            episodes_dropped=self._counts.dropped - self._counts_before.dropped,
        )

    def _latest_episodes(self) -> list[Outcome]:
        """The last episodes of the environments, as many of each: the fewest that one has finished here, or
        one, whenever it was."""
        fewest = min(map(len, self._ended))
        if fewest == 0:
            return [outcome for outcome in self.latest if outcome is not None]
        return [outcome for outcomes in self._ended for outcome in outcomes[-fewest:]]


def _statistics(outcomes: Sequence[Outcome]) -> EpisodeStatistics:
    table = np.array(outcomes, dtype=np.float32).reshape(-1, 4)  # None becomes NaN
    return EpisodeStatistics(*(torch.from_numpy(column.copy()) for column in table.T))
