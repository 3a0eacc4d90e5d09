"""A collector that plays nothing: its rollout is what was played before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lgym.data.logged.episodes import LoggedEpisode
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.rollout.collector import Progress
from lgym.functional import discounted_returns
from lgym.rollout import Prompt, Response, Rollout
from lgym.types import Episode, Policy

Demonstrated = Callable[[Prompt, str, tuple[int, ...], int], Response]
"""Makes a response of a prompt, a text, its tokens where it was sampled, and the candidate's number."""


@dataclass(eq=False)
class LoggedCollector:
    """A `Collector` whose every rollout holds all episodes of a log, in one stream.

    The value of a prompt is the mean of the discounted returns that were had from there.

    Args:
        episodes: those of this process.
        prompts: makes their prompts.
        demonstrated: makes responses of their choices.
        gamma: the discount per turn.
    """

    episodes: Sequence[LoggedEpisode]
    prompts: EpisodePrompts
    demonstrated: Demonstrated
    gamma: float
    transcripts: Sequence[Episode] = ()
    _numbers: dict[Prompt, int] = field(default_factory=dict)

    def play(self, policy: Policy, rng: Any, *, progress: Progress, **_: Any) -> Rollout:
        """The episodes as a rollout; whatever acts, and however much is asked for."""
        return self._rollout

    @cached_property
    def _rollout(self) -> Rollout:
        rows: list[tuple[int, float, bool, bool, int, int]] = []
        responses: list[Response] = []
        for number, episode in enumerate(self.episodes):
            self.prompts.begin()
            index: list[int] = []
            for turn in episode.turns:
                prompt = self._prompt(turn.observation_text, turn.candidates, index)
                response = self.demonstrated(prompt, turn.candidates[turn.choice], (), turn.choice)
                responses.append(response)
                self.prompts.respond(response, turn.reward)
            if episode.final is not None:
                self._prompt(*episode.final, index)
            following = [*index[1:], -1][: len(episode.turns)]
            for at, turn in enumerate(episode.turns):
                last = at == len(episode.turns) - 1
                ending = last and episode.terminated, last and not episode.terminated
                rows.append((index[at], turn.reward, *ending, following[at], number))
        prompt_index, rewards, terminated, truncated, next_prompt_index, episode_ids = (
            torch.from_numpy(np.array(column)[None]) for column in zip(*rows, strict=True)
        )
        rewards = rewards.float()
        returns = discounted_returns(
            rewards, torch.zeros_like(rewards), terminated, truncated, gamma=self.gamma
        )
        sums, counts = returns.new_zeros(2, len(self._numbers)).index_add(
            1, prompt_index[0], torch.stack([returns[0], torch.ones_like(returns[0])])
        )
        mean = sums.sum() / counts.sum()  # where nobody acted: 0 would make a cut a good or a bad end
        prompt_values = torch.where(counts > 0, sums / counts.clamp(min=1), mean)
        lengths = torch.tensor([len(episode.turns) for episode in self.episodes], dtype=torch.float32)
        return Rollout(
            prompts=tuple(self._numbers),
            prompt_values=prompt_values,
            responses=tuple(responses),
            prompt_index=prompt_index,
            response_index=torch.arange(len(rows))[None],
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            cut=torch.zeros_like(terminated),
            mask=torch.ones_like(terminated),
            parsed=torch.ones_like(terminated),
            episode_ids=episode_ids,
            reset_seeds=torch.zeros_like(episode_ids),
            next_values=prompt_values[next_prompt_index].masked_fill(terminated, 0.0),
            episode_returns=torch.tensor(
                [episode.episode_return for episode in self.episodes], dtype=torch.float32
            ),
            episode_lengths=lengths,
            episode_penalties=torch.zeros_like(lengths),
            episode_successes=torch.full_like(lengths, torch.nan),
            seconds=0.0,
            total_turns=len(rows),
            total_episodes=len(self.episodes),
            next_prompt_index=next_prompt_index,
        )

    def _prompt(self, text: str, candidates: Sequence[str], index: list[int]) -> Prompt:
        """The prompt at an observation, whose number is added to an episode's."""
        self.prompts.observation_text = text
        prompt = self.prompts.prompt(candidates)
        index.append(self._numbers.setdefault(prompt, len(self._numbers)))
        return prompt

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the files have it all."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
