"""The replay buffer whose transitions are valued by all of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgym.data.replay_buffer import ReplayBuffer
from lgym.functional import graph_backup
from lgym.transitions import TransitionBatch


class GraphReplayBuffer(ReplayBuffer):
    """A replay buffer that backs values up through the graph of its transitions, to their end, before it
    gives them: value iteration over what was met, in place of a step of it for every target network.

    What one episode found out is so learned at once of all prompts from which the way is known. For
    environments whose prompts come again and tell states apart; one that never does is valued by what
    followed it once, chance and exploration included.

    "Graph Backup: Data Efficient Backup Exploiting Markovian Transitions", Jiang et al. 2022,
    arXiv:2205.15824, whose backups end after some steps.

    Args:
        **kwargs: of `ReplayBuffer`. Also what is not balanced is drawn with all choices that were made at its
            prompt, and prompts by how often they were met.
    """

    backs_up = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._backed_up: Tensor | None = None  # [n] values of the transitions, until there are others

    def add(self, batch: TransitionBatch) -> None:
        super().add(batch)
        self._backed_up = None

    def sample(self, rng: np.random.Generator) -> TransitionBatch:
        """A minibatch of choices that are paid what they are worth and end there."""
        batch = self._batch()
        if self._backed_up is None:
            columns: dict[str, Any] = dict(self._columns)
            self._backed_up = graph_backup(**columns)
        nothing = torch.zeros_like(self._backed_up)
        ended = replace(
            batch,
            rewards=self._backed_up,
            next_prompt_index=torch.full_like(batch.next_prompt_index, -1),
            discounts=nothing,
            next_values=nothing,
        )
        return ended.select(self._draw(rng))

    def _draw(self, rng: np.random.Generator) -> Tensor:
        visits = self._columns["prompt_index"].bincount(minlength=self.num_prompts)
        return self._draw_prompts(torch.ones_like(visits) if self.balanced else visits, rng)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._backed_up = None
