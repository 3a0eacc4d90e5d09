"""The replay buffer: transitions of earlier rollouts, to learn values from again."""

from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgym.rollout import Prompt
from lgym.transitions import COLUMNS, TransitionBatch
from lgym.types import ConfigError


class ReplayBuffer:
    """The newest transitions, drawn at random; every distinct prompt is kept once.

    "Playing Atari with Deep Reinforcement Learning", Mnih et al. 2013, arXiv:1312.5602.

    Args:
        capacity: the most transitions of a process; the oldest leave first.
        minibatch_size: transitions of a minibatch. Each of their distinct prompts is computed once.
        updates_per_rollout: minibatches, and so optimizer steps, behind each rollout.
        learning_starts: transitions to hold before the first step.
        balanced: draw prompts equally often, each with all choices that were made there, a transition of each
            pair, however often it was met, as value iteration sweeps over them. A reward that one choice in a
            hundred is paid is so learned from as often as what never is, and the choices of a prompt are
            computed together. For environments whose prompts come again; false draws transitions equally
            often.
    """

    def __init__(
        self,
        capacity: int = 100_000,
        minibatch_size: int = 96,
        updates_per_rollout: int = 24,
        learning_starts: int = 1000,
        balanced: bool = False,
    ) -> None:
        counts = {
            "capacity": capacity,
            "minibatch_size": minibatch_size,
            "updates_per_rollout": updates_per_rollout,
            "learning_starts": learning_starts,
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"data.replay: {name} is {count}; it must be 1 or more.")
        for name in ("minibatch_size", "learning_starts"):
            if capacity < counts[name]:
                raise ConfigError(
                    f"data.replay: capacity is {capacity} and {name} is {counts[name]}: a buffer holds that "
                    f"many at least. Set capacity to {counts[name]} or more."
                )
        self.capacity = capacity
        self.minibatch_size = minibatch_size
        self.updates_per_rollout = updates_per_rollout
        self.learning_starts = learning_starts
        self.balanced = balanced
        self._prompts: dict[Prompt, int] = {}  # in the order of their numbers
        self._columns: dict[str, Tensor] = {}  # [n] each, the oldest first

    def __len__(self) -> int:
        return len(self._columns["choices"]) if self._columns else 0

    @property
    def num_prompts(self) -> int:
        """Distinct prompts of the transitions."""
        return len(self._prompts)

    def add(self, batch: TransitionBatch) -> None:
        """Keep transitions as the newest ones."""
        numbers = torch.tensor(
            [self._prompts.setdefault(prompt, len(self._prompts)) for prompt in batch.prompts] + [-1]
        )
        new = {name: getattr(batch, name) for name in COLUMNS}
        new |= {name: numbers[new[name]] for name in ("prompt_index", "next_prompt_index")}
        for name, column in new.items():
            known = self._columns.get(name, column[:0])
            self._columns[name] = torch.cat([known, column])[-self.capacity :]
        self._forget_prompts()

    def sample(self, rng: np.random.Generator) -> TransitionBatch:
        """A minibatch: drawn with replacement, or balanced, which goes over all before it draws one again."""
        return self._batch().select(self._draw(rng))

    def _draw(self, rng: np.random.Generator) -> Tensor:
        """[minibatch_size] int64, the places of the drawn transitions."""
        if self.balanced:
            return self._draw_prompts(torch.ones(self.num_prompts), rng)
        return torch.from_numpy(rng.integers(len(self), size=self.minibatch_size))

    def _draw_prompts(self, weights: Tensor, rng: np.random.Generator) -> Tensor:
        """[minibatch_size] places, of a transition of each pair of one prompt after the other.

        Args:
            weights: [num_prompts], in proportion to which the next prompt is drawn from those that are left
                (Efraimidis & Spirakis 2006, doi:10.1016/j.ipl.2005.11.003).
            rng: chance.
        """
        prompt_index, choices = self._columns["prompt_index"], self._columns["choices"]
        width = 1 + int(choices.max())
        keys, pair = (prompt_index * width + choices).unique(return_inverse=True)
        prompts = keys // width
        drawn: list[Tensor] = []
        while sum(map(len, drawn)) < self.minibatch_size:
            order = torch.from_numpy(rng.permutation(len(self)))
            places = torch.empty_like(prompts)
            places[pair[order]] = order
            turns = torch.from_numpy(rng.exponential(size=self.num_prompts)) / weights
            drawn.append(places[turns[prompts].argsort(stable=True)])
        return torch.cat(drawn)[: self.minibatch_size]

    def _draw_by(self, weights: Tensor, rng: np.random.Generator) -> Tensor:
        """[minibatch_size] places, in proportion to the weights of all transitions."""
        shares = (weights / weights.sum()).numpy()
        return torch.from_numpy(rng.choice(len(self), size=self.minibatch_size, p=shares))

    def state_dict(self) -> dict[str, Any]:
        """The transitions and their prompts; tensors, plain numbers and texts."""
        offers = {(prompt.candidate_ids, prompt.candidates): None for prompt in self._prompts}
        numbers = {offer: number for number, offer in enumerate(offers)}
        tokens = np.fromiter(chain.from_iterable(p.token_ids for p in self._prompts), dtype=np.int32)
        return {
            "columns": dict(self._columns),
            "tokens": torch.from_numpy(tokens),  # of all prompts, one behind the other
            "lengths": torch.tensor([len(p.token_ids) for p in self._prompts], dtype=torch.int64),
            "offers": list(offers),  # distinct lists of candidates
            "offer_index": torch.tensor(
                [numbers[p.candidate_ids, p.candidates] for p in self._prompts], dtype=torch.int64
            ),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` wrote, but for the words of observations, which nothing learns from.

        Raises:
            ConfigError: of what an older version of lgym wrote.
        """
        if state["columns"] and (missing := ", ".join(set(COLUMNS) - set(state["columns"]))):
            raise ConfigError(
                f"The replay buffer of this checkpoint has no {missing}: an older version of lgym wrote it. "
                "Begin a new run, from its adapter by --model.llm.adapter."
            )
        self._columns = dict(state["columns"])
        offers = _as_tuples(state["offers"])
        tokens = state["tokens"].split(state["lengths"].tolist())
        prompts = (
            Prompt(tuple(ids.tolist()), offers[number][0], offers[number][1], observation_text="")
            for ids, number in zip(tokens, state["offer_index"].tolist(), strict=True)
        )
        self._prompts = {prompt: number for number, prompt in enumerate(prompts)}

    def _batch(self) -> TransitionBatch:
        columns: dict[str, Any] = dict(self._columns)
        return TransitionBatch(tuple(self._prompts), **columns)

    def _forget_prompts(self) -> None:
        """Number those that are left anew, where transitions hold fewer than half."""
        used = torch.cat([self._columns["prompt_index"], self._columns["next_prompt_index"]]).unique()
        if 2 * int((used >= 0).sum()) < len(self._prompts):
            batch = self._batch().select(torch.arange(len(self)))
            self._prompts = {prompt: number for number, prompt in enumerate(batch.prompts)}
            self._columns = {name: getattr(batch, name) for name in COLUMNS}


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value
