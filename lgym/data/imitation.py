"""Turns to imitate beside those that were played: demonstrations, and the run's own best episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from lgym import ranks
from lgym.agents.base import TextAgent
from lgym.batch import Context, Reply, ReplyBatch, Rollout
from lgym.data.chat import ContextBuilder
from lgym.data.demonstrations import Demonstration, DemonstrationSource
from lgym.data.replay import BestEpisodes, FinishedEpisode
from lgym.types import ConfigError


class Imitation:
    """Draws turns to imitate, each as likely as the others, whether they come from a source or from the best episodes."""

    def __init__(
        self,
        agent: TextAgent,
        builder: ContextBuilder,
        demonstrated: Callable[[Context, str, tuple[int, ...], int], Reply],
        demonstrations: Sequence[Demonstration],
        replay: BestEpisodes | None,
        size: int,
        *,
        chooses: bool,
    ) -> None:
        """
        Args:
            agent: whose words they are.
            builder: makes prompts of observations.
            demonstrated: the policy's own reply to a context that says a text, given its tokens if it was sampled, and the
                number of the candidate it names, or -1.
            demonstrations: turns that are always there.
            replay: whose episodes come and go.
            size: turns drawn for one minibatch.
            chooses: whether replies name a candidate.
        """
        self._agent, self._builder, self._demonstrated = agent, builder, demonstrated
        self._replay, self._size, self._chooses = replay, size, chooses
        self._always = [self._turn(demonstration) for demonstration in demonstrations]
        self._turns = self._always

    def played(self, rollout: Rollout) -> None:
        """Keeps the best episodes of a rollout of whole episodes, whichever process played them."""
        if self._replay is not None:
            self._replay.add(episode for part in ranks.everyone(_episodes(rollout)) for episode in part)
            self._turns = self._always + [self._turn(demonstration) for demonstration in self._replay.turns()]

    @property
    def always(self) -> bool:
        """Whether there are demonstrations, whatever is played."""
        return bool(self._always)

    def demonstrations(self, rng: np.random.Generator) -> Iterator[ReplyBatch]:
        """One shuffled pass over the demonstrations."""
        order = rng.permutation(len(self._always)).tolist()
        for start in range(0, len(order), self._size):
            yield _batch([self._always[i] for i in order[start : start + self._size]])

    def draw(self, rng: np.random.Generator) -> ReplyBatch | None:
        """Some turns; `None` while there are none."""
        if not self._turns:
            return None
        chosen = rng.choice(len(self._turns), size=min(self._size, len(self._turns)), replace=False)
        return _batch([self._turns[i] for i in chosen.tolist()])

    def _turn(self, demonstration: Demonstration) -> tuple[Context, Reply]:
        candidates = demonstration.candidates or (tuple(self._agent.actions) if self._chooses else ())
        context = self._builder.context(demonstration.observation_text, candidates if self._chooses else ())
        choice = self._choice(demonstration, candidates) if self._chooses else -1
        return context, self._demonstrated(context, demonstration.response_text, demonstration.response_ids, choice)

    def _choice(self, demonstration: Demonstration, candidates: Sequence[str]) -> int:
        """The candidate that is the response, or else its action."""
        if demonstration.response_text in candidates:
            return candidates.index(demonstration.response_text)
        action = self._agent.parse(demonstration.response_text).action
        for number, candidate in enumerate(candidates):
            if np.array_equal(self._agent.parse(candidate).action, action):
                return number
        raise ConfigError(
            f"The demonstration {demonstration.response_text!r} names none of the candidates "
            f"{', '.join(map(repr, candidates))} at the observation {demonstration.observation_text!r}."
        )


def load_demonstrations(
    sources: Sequence[DemonstrationSource], agent: TextAgent, make_env: Callable[[], gymnasium.Env]
) -> list[Demonstration]:
    """Those of all sources, in order."""
    return [demonstration for source in sources for demonstration in source.demonstrations(agent, make_env)]


def _episodes(rollout: Rollout) -> list[FinishedEpisode]:
    """The episodes of a rollout of whole ones, as they are kept."""
    found: dict[int, tuple[list[float], int, list[Demonstration]]] = {}
    columns: tuple[Any, ...] = (
        rollout.episode_ids,
        rollout.reset_seeds,
        rollout.rewards,
        rollout.context_ids,
        rollout.choices,
    )
    rows = zip(*(column[rollout.mask].tolist() for column in columns), strict=True)
    for number, seed, reward, row, choice in rows:
        context = rollout.contexts[row]
        rewards, _, turns = found.setdefault(number, ([], seed, []))
        rewards.append(reward)
        if rollout.replies:
            reply = rollout.replies[choice]
            text = reply.text if reply.choice < 0 else context.candidates[reply.choice]
            turns.append(Demonstration(context.observation_text, text, context.candidates, reply.ids))
        else:
            turns.append(Demonstration(context.observation_text, context.candidates[choice], context.candidates))
    return [FinishedEpisode(sum(rewards), seed, tuple(turns)) for rewards, seed, turns in found.values()]


def _batch(turns: Sequence[tuple[Context, Reply]]) -> ReplyBatch:
    numbers: dict[Context, int] = {}
    for context, _ in turns:
        numbers.setdefault(context, len(numbers))
    turns = sorted(turns, key=lambda turn: numbers[turn[0]])
    mask = torch.zeros(len(turns), max(len(reply.mask) for _, reply in turns), dtype=torch.bool)
    for row, (_, reply) in zip(mask, turns, strict=True):
        row[: len(reply.mask)] = torch.tensor(reply.mask)
    mask = mask[:, : int(mask.any(0).nonzero().max()) + 1]
    return ReplyBatch(
        contexts=tuple(numbers),
        bundles=(tuple(range(len(numbers))),),
        by_reply=True,
        rows=torch.tensor([numbers[context] for context, _ in turns]),
        replies=tuple(reply.ids for _, reply in turns),
        choices=torch.tensor([reply.choice for _, reply in turns]),
        mask=mask,
        old_logprobs=torch.zeros(mask.shape),
        advantages=mask.float(),
        returns=None,
        ref_logprobs=None,
        scale=1.0 / int(mask.sum()),
    )
