"""Demonstrated turns for supervised learning: from a source, and from the run's own best episodes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from lgym import distributed
from lgym.agents.base import TextAgent
from lgym.batch import ResponseBatch
from lgym.data.imitation.best_episodes import FinishedEpisode
from lgym.data.imitation.demonstrations import Demonstration, DemonstrationSource
from lgym.data.prompts.action_candidates import candidate_number
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.memory_prompt import MemoryPrompt
from lgym.rollout import Prompt, Response, Rollout
from lgym.types import ConfigError


class EpisodeBuffer(Protocol):
    """Turns to imitate that come from the run's own episodes."""

    def add(self, episodes: Iterable[tuple[Any, ...]]) -> None:
        """Add those of a rollout's `FinishedEpisode`s, of all processes."""

    def turns(self) -> list[Demonstration]:
        """The distinct turns to imitate, with the observations as they were shown."""


@dataclass(eq=False)
class SFTSampler:
    """Samples demonstrated turns, each as likely as the others, whether from a source or from the run's own
    episodes.

    Args:
        agent: whose words they are.
        prompts: makes the prompts of episodes as in play, but for the memory, which is given to it.
        demonstrated: makes the policy's response to a prompt from a text, its tokens if it was sampled,
            and the number of the candidate that it names, or -1.
        demonstrations: turns that are always there.
        buffers: whose turns come and go with the rollouts.
        size: turns drawn for one minibatch, by each process.
        scores_candidates: whether responses name a candidate.
        memory: adds the working memory to the observations of `demonstrations`; those of `buffers` have
            what they were shown. `None` adds nothing.
        turns_per_pass: the most turns of a pass, for each process: those that the last rollout brought are
            taken first, those that were there before are drawn anew for each. `None` takes all.
    """

    agent: TextAgent
    prompts: Callable[..., EpisodePrompts]
    demonstrated: Callable[[Prompt, str, tuple[int, ...], int], Response]
    demonstrations: Sequence[Demonstration]
    buffers: Sequence[EpisodeBuffer]
    size: int
    _: KW_ONLY
    scores_candidates: bool
    memory: MemoryPrompt | None = None
    turns_per_pass: int | None = None

    def __post_init__(self) -> None:
        self._demonstrated = list(self._as_asked(self.demonstrations, self.memory))
        self._turns = self._demonstrated
        self.begin_rollout(first=True)

    def begin_rollout(self, first: bool) -> None:
        """Take the turns at hand for known; before the first pass over them all are new."""
        self._known = set() if first else set(self._buffered())
        self._is_new = np.full(len(self._demonstrated), first)

    def add_rollout(self, rollout: Rollout) -> None:
        """Give the buffers a rollout of whole episodes, whichever process played them."""
        if self.buffers:
            episodes = list(chain.from_iterable(distributed.all_gather_object(_episodes(rollout))))
            for buffer in self.buffers:
                buffer.add(episodes)
            turns = self._buffered()
            self._turns = [*self._demonstrated, *self._as_asked(turns)]
            came = [turn not in self._known for turn in turns]
            self._is_new = np.array([*self._is_new[: len(self._demonstrated)], *came], dtype=bool)

    @property
    def has_turns(self) -> bool:
        """True if there are turns to imitate so far."""
        return bool(self._turns)

    @property
    def num_minibatches(self) -> int:
        """The minibatches of a pass."""
        own_turns = -(-len(self._turns) // distributed.world_size())
        return -(-min(own_turns, self.turns_per_pass or own_turns) // self.size)

    def demonstration_batches(self, rng: np.random.Generator) -> Iterator[ResponseBatch]:
        """One shuffled pass over the turns, the demonstrations and those of the buffers so far, which the
        processes share.

        Raises:
            ConfigError: if the processes have different turns.
        """
        processes = distributed.world_size()
        order = rng.permutation(len(self._turns))
        if self.turns_per_pass is not None and self.turns_per_pass * processes < len(order):
            new_first = order[np.argsort(~self._is_new[order], kind="stable")]
            order = rng.permutation(new_first[: self.turns_per_pass * processes])
        counts, orders = zip(*distributed.all_gather_object((len(self._turns), order.tolist())), strict=True)
        if len(set(counts)) > 1:
            raise ConfigError(
                f"The processes of the run have {', '.join(map(str, counts))} turns to imitate: an expert of "
                "data.demonstrations has to answer alike in all of them, whatever the time and the machine."
            )
        size = self.size * processes
        for start in range(0, len(order), size):
            yield self._share([self._turns[i] for i in orders[0][start : start + size]])

    def sample(self, rng: np.random.Generator) -> ResponseBatch | None:
        """Some turns; `None` while there are none."""
        if not self._turns:
            return None
        chosen = rng.choice(len(self._turns), size=min(self.size, len(self._turns)), replace=False)
        return _batch([self._turns[i] for i in chosen.tolist()])

    def _share(self, turns: Sequence[tuple[Prompt, Response]]) -> ResponseBatch:
        """This process's part of the turns of all, with the weight by which the processes' mean loss is that
        of the whole."""
        processes = distributed.world_size()
        own = turns[distributed.rank() :: processes]
        tokens = sum(sum(response.action_mask) for _, response in turns)
        return replace(_batch(own or turns[:1]), loss_scale=processes / tokens if own else 0.0)

    def _buffered(self) -> list[Demonstration]:
        return [turn for buffer in self.buffers for turn in buffer.turns()]

    def _as_asked(
        self, demonstrations: Iterable[Demonstration], memory: MemoryPrompt | None = None
    ) -> Iterator[tuple[Prompt, Response]]:
        """Each turn with the prompt that asks for it in play, behind the turns of its episode before it."""
        prompts = self.prompts(memory=memory)
        for turn in demonstrations:
            if turn.begins:
                prompts.begin()
            prompts.observation_text = turn.observation_text
            prompt = prompts.prompt(
                (turn.candidates or tuple(self.agent.actions)) if self.scores_candidates else ()
            )
            response = self._response(prompt, turn.response_text, turn.response_ids)
            played = self._response(prompt, turn.played_text) if turn.played_text else response
            prompts.respond(played, turn.reward)
            yield prompt, response

    def _response(self, prompt: Prompt, text: str, token_ids: tuple[int, ...] = ()) -> Response:
        if not self.scores_candidates:
            return self.demonstrated(prompt, text, token_ids, -1)
        number = candidate_number(self.agent, text, prompt.candidates)
        if number is None:
            raise ConfigError(
                f"The demonstration {text!r} names none of the candidates "
                f"{', '.join(map(repr, prompt.candidates))} at the observation {prompt.observation_text!r}."
            )
        return self.demonstrated(prompt, text, token_ids, number)


def load_demonstrations(
    sources: Sequence[DemonstrationSource], agent: TextAgent, make_env: Callable[[], gymnasium.Env]
) -> list[Demonstration]:
    """The demonstrations of all sources, in order. Raises `ConfigError` if there are none."""
    found = [demonstration for source in sources for demonstration in source.demonstrations(agent, make_env)]
    if sources and not found:
        names = ", ".join(type(source).__name__ for source in sources)
        raise ConfigError(f"data.demonstrations ({names}) has no turns to imitate. Leave it out, or fill it.")
    return found


def _episodes(rollout: Rollout) -> list[FinishedEpisode]:
    """The episodes of a rollout of whole ones, as they are kept."""
    episodes: dict[int, tuple[list[float], int, list[Demonstration]]] = {}
    columns = (
        column[rollout.mask].tolist()
        for column in (rollout.episode_ids, rollout.reset_seeds, rollout.rewards)
    )
    for number, seed, reward, prompt, response in zip(
        *columns, rollout.turn_prompts(), rollout.turn_responses(), strict=True
    ):
        rewards, _, turns = episodes.setdefault(number, ([], seed, []))
        rewards.append(reward)
        token_ids = () if response.candidate_logprobs else response.token_ids  # a choice is made anew
        turns.append(
            Demonstration(prompt.observation_text, str(response.action_text), prompt.candidates, token_ids)
        )
    return [
        FinishedEpisode(sum(rewards), seed, tuple(turns), tuple(rewards))
        for rewards, seed, turns in episodes.values()
    ]


def _batch(turns: Sequence[tuple[Prompt, Response]]) -> ResponseBatch:
    prompts = dict.fromkeys(prompt for prompt, _ in turns)  # distinct, in the order in which they come
    numbers = {prompt: number for number, prompt in enumerate(prompts)}
    turns = sorted(turns, key=lambda turn: numbers[turn[0]])
    mask = pad_sequence(
        [torch.tensor(response.action_mask, dtype=torch.bool) for _, response in turns], batch_first=True
    )
    mask = mask[:, : int(mask.any(0).nonzero().max()) + 1]
    return ResponseBatch(
        prompts=tuple(numbers),
        prompt_chains=(tuple(range(len(numbers))),),
        prompt_index=torch.tensor([numbers[prompt] for prompt, _ in turns]),
        response_ids=tuple(response.token_ids for _, response in turns),
        choices=torch.tensor([response.choice for _, response in turns]),
        action_mask=mask,
        old_logprobs=torch.zeros(mask.shape),
        advantages=mask.float(),
        loss_scale=1.0 / int(mask.sum()),
    )
