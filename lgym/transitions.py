"""Transitions to learn values of actions from, in minibatches.

    B  transitions of a batch           U  distinct prompts of a batch
    C  candidates, padded to the longest list

Every tensor lives on the CPU in fp32, int64 or bool until `to(device)` moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lgym.rollout import Prompt

COLUMNS = ("prompt_index", "choices", "rewards", "next_prompt_index", "discounts", "next_values")


@dataclass(frozen=True)
class TransitionBatch:
    """Choices, what they were paid over some turns, and the prompts that they led to.

    Attributes:
        weights: [B] of each in the loss; `None` weighs all the same.
        take_errors: told [B] errors of the values that were learned, in standard deviations of returns, by a
            replay buffer that draws by them.
        supervised: demonstrated turns to learn from beside these, a `ResponseBatch`.
        metrics: metrics of the rollout; with its first minibatch only.
        token_traces: of free text, which has no transitions: none.
    """

    prompts: tuple[Prompt, ...]  # U, those that were acted on and those that bootstrap
    prompt_index: Tensor  # [B] int64, the prompt of each choice
    choices: Tensor  # [B] int64, the chosen candidate
    rewards: Tensor  # [B] discounted sums over the turns up to the prompt that bootstraps
    next_prompt_index: Tensor  # [B] int64, that prompt; -1 where none does
    discounts: Tensor  # [B] of its value; 0 where none does
    next_values: Tensor  # [B] that value as it was when it was played; 0 where none does
    weights: Tensor | None = None
    take_errors: Callable[[Tensor], None] | None = None
    supervised: Any = None
    metrics: Mapping[str, float] | None = None
    token_traces: tuple[Any, ...] = ()
    by_prompt = True

    def __len__(self) -> int:
        return len(self.prompt_index)

    @property
    def num_turns(self) -> int:
        """B."""
        return len(self)

    @property
    def prompt_chains(self) -> tuple[tuple[int, ...], ...]:
        """The prompts that were acted on, each by itself."""
        return tuple((number,) for number in self.prompt_index.unique().tolist())

    @property
    def num_units(self) -> int:
        """Distinct prompts that were acted on."""
        return len(self.prompt_chains)

    def to(self, device: torch.device | str) -> TransitionBatch:
        """The same with its tensors on a device."""
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in COLUMNS}
        moved |= {
            name: part.to(device)
            for name in ("weights", "supervised")
            if (part := getattr(self, name)) is not None
        }
        return replace(self, **moved)

    def select(self, rows: Tensor, **fields: Any) -> TransitionBatch:
        """[n] of its transitions, and their prompts; with other fields that are given."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        numbers = torch.cat([columns["prompt_index"], columns["next_prompt_index"]])
        kept, index = numbers.unique(return_inverse=True)
        if len(kept) and kept[0] < 0:
            kept, index = kept[1:], index - 1
        columns["prompt_index"], columns["next_prompt_index"] = index.view(2, -1)
        return replace(self, prompts=tuple(self.prompts[i] for i in kept.tolist()), **columns, **fields)

    def minibatches(self, size: int, order: Sequence[int]) -> Iterator[TransitionBatch]:
        """One pass over the prompts that were acted on, in the given order: `size` of them at a time, each
        with every choice that was made there."""
        acted_on = torch.tensor([chain[0] for chain in self.prompt_chains])[list(order)]
        for part in acted_on.split(size):
            yield self.select(torch.isin(self.prompt_index, part).nonzero().flatten())

    def records(self, tokenizer: Any) -> Iterator[dict[str, Any]]:
        """A transition per record, as a person reads it."""
        texts = [tokenizer.decode(list(prompt.token_ids)) for prompt in self.prompts]
        for row in range(len(self)):
            prompt, following = int(self.prompt_index[row]), int(self.next_prompt_index[row])
            yield {
                "prompt": texts[prompt],
                "choice": self.prompts[prompt].candidates[int(self.choices[row])],
                "reward": float(self.rewards[row]),
                "discount": float(self.discounts[row]),
                "next_prompt": None if following < 0 else texts[following],
            }
