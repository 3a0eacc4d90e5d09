"""Turns to learn from, in minibatches, and the legend of their shapes.

    B  turns of a batch                   U  distinct prompts of a batch
    T  tokens of a response               C  candidates, padded to the longest list

Every tensor lives on the CPU in fp32, int64 or bool until `to(device)` moves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgym.rollout import Prompt
from lgym.types import TokenTrace

TABLES = {"old_candidate_logprobs", "ref_candidate_logprobs"}
"""The tensors of a batch that have a row per prompt; the others have one per turn."""


@dataclass(frozen=True)
class PolicyOutput:
    """Log-probabilities, entropies and values of a batch's responses; differentiable.

    Attributes:
        old_kl: [B, T] exact KL(behavior policy || policy), where the batch has the behavior policy's
            distributions.
        ref_kl: [B, T] exact KL(policy || reference), where it has the reference's.
        candidate_logprobs: [U, C] the distributions themselves, padded with -inf, where they are known.
    """

    logprobs: Tensor  # [B, T], 0 where `action_mask` is 0
    entropy: Tensor  # [B, T] nats, likewise
    values: Tensor  # [B, T] or [B, 1], of the state before each token; column 0 is the state before the turn
    old_kl: Tensor | None = None
    ref_kl: Tensor | None = None
    candidate_logprobs: Tensor | None = None

    def index(self, rows: Tensor) -> PolicyOutput:
        """The output of [n] turns, each of which gave one of these B responses. (Of a free text nothing is
        exact.)"""
        return PolicyOutput(self.logprobs[rows], self.entropy[rows], self.values[rows])


@dataclass(frozen=True)
class ResponseBatch:
    """Responses to learn from, with what was known at rollout time; sorted by prompt.

    Attributes:
        prompt_chains: the prompts that one minibatch takes together, since each extends the one before.
        loss_scale: the sum over turns is multiplied by this. A rollout has 1 / turns (their mean over all
            processes), a minibatch that times the minibatches of a pass: so these average to the mean over
            the rollout, however unequal they are.
        mean_tokens: chosen tokens per turn of the rollout, over all processes.
        by_prompt: True if minibatches are counted in distinct prompts; otherwise in distinct responses to
            them.
        idle: True if there is nothing to learn: only `supervised` takes a step.
        supervised: demonstrated turns to learn from beside these.
        metrics: metrics of the rollout; with its first minibatch only.
        token_traces: some episodes of the rollout, turn by turn; with its first minibatch only.
    """

    prompts: tuple[Prompt, ...]  # U
    prompt_chains: tuple[tuple[int, ...], ...]
    prompt_index: Tensor  # [B] int64, the prompt of each turn
    response_ids: tuple[tuple[int, ...], ...]  # B responses' tokens
    choices: Tensor  # [B] int64, the chosen candidate; -1 for free text
    action_mask: Tensor  # [B, T] bool, 1 for the tokens that the policy chose
    old_logprobs: Tensor  # [B, T] of the behavior policy; 0 where the mask is 0, as in all that follow
    advantages: Tensor  # [B, T]
    loss_scale: float
    mean_tokens: float = 1.0
    by_prompt: bool = False
    returns: Tensor | None = None  # [B, T], or [B, 1] before each turn: targets of values, if wanted
    old_values: Tensor | None = None  # likewise, the values at rollout time
    old_candidate_logprobs: Tensor | None = None  # [U, C] of the behavior policy, where they are known
    ref_logprobs: Tensor | None = None  # [B, T] of the frozen reference, where a loss wants them
    ref_candidate_logprobs: Tensor | None = None  # [U, C] likewise
    turn_weights: Tensor | None = None  # [B] of the turns in sums over them; 1 where there are none
    idle: bool = False
    supervised: ResponseBatch | None = None
    metrics: Mapping[str, float] | None = None
    token_traces: tuple[tuple[TokenTrace, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.prompt_index)

    @property
    def num_turns(self) -> int:
        """The turns that a mean counts: none where the batch only fills up a pass."""
        return len(self) if self.loss_scale else 0

    @property
    def num_units(self) -> int:
        """Distinct prompts that were acted on, or distinct responses: what minibatches are counted in."""
        return sum(map(len, self.prompt_chains)) if self.by_prompt else len(set(self._responses()))

    def to(self, device: torch.device | str) -> ResponseBatch:
        """The same with its tensors on a device."""
        moved: dict[str, Any] = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor | ResponseBatch)
        }
        return replace(self, **moved)

    def select(self, turns: Tensor, loss_scale: float) -> ResponseBatch:
        """[n] of its turns and their prompts, in the order in which these come."""
        width = int(self.action_mask[turns].any(0).nonzero().max()) + 1
        prompt_numbers = list(dict.fromkeys(self.prompt_index[turns].tolist()))
        new_index = torch.zeros(len(self.prompts), dtype=torch.int64, device=self.prompt_index.device)
        new_index[prompt_numbers] = torch.arange(len(prompt_numbers), device=new_index.device)
        prompts = tuple(self.prompts[i] for i in prompt_numbers)
        most_candidates = max(len(prompt.candidates) for prompt in prompts)

        columns: dict[str, Any] = {}
        for name, column in vars(self).items():
            if isinstance(column, Tensor) and name in TABLES:
                columns[name] = column[prompt_numbers, :most_candidates]
            elif isinstance(column, Tensor):
                columns[name] = column[turns] if column.dim() == 1 else column[turns, :width]
        columns["prompt_index"] = new_index[columns["prompt_index"]]
        return replace(
            self,
            prompts=prompts,
            prompt_chains=(tuple(range(len(prompts))),),
            response_ids=tuple(self.response_ids[i] for i in turns.tolist()),
            loss_scale=loss_scale,
            token_traces=(),
            **columns,
        )

    def where(self, keep: Tensor) -> ResponseBatch:
        """The turns where [B] `keep` is 1, beside all prompts."""
        prompts = set(self.prompt_index[keep].tolist())
        chains = [tuple(prompt for prompt in chain if prompt in prompts) for chain in self.prompt_chains]
        kept: dict[str, Any] = {
            name: column[keep]
            for name, column in vars(self).items()
            if isinstance(column, Tensor) and name not in TABLES
        }
        response_ids = tuple(compress(self.response_ids, keep.tolist()))
        return replace(self, prompt_chains=tuple(filter(None, chains)), response_ids=response_ids, **kept)

    def thinned(self, size: int, rng: np.random.Generator) -> ResponseBatch:
        """A random part of about `size` distinct prompts, one chain of them at least, drawn with
        probabilities in proportion to their turns, and at most 1.

        The turns of a prompt that is drawn weigh one over its probability, so that sums over turns keep
        their expectation (Horvitz & Thompson 1952, doi:10.1080/01621459.1952.10483446; drawn systematically,
        Madow 1949). The long tail of prompts that were met once is so asked for in a few passes, not in each.
        Prompts that extend each other are drawn together.
        """
        prompts = sum(map(len, self.prompt_chains))
        if prompts <= size:
            return self
        turns = torch.bincount(self.prompt_index, minlength=len(self.prompts)).double()
        chain_turns = np.array([float(turns[list(chain)].sum()) for chain in self.prompt_chains])
        chances = inclusion_probabilities(chain_turns, max(1.0, size * len(self.prompt_chains) / prompts))
        ends = np.floor(chances.cumsum() + rng.random())
        drawn = np.diff(ends, prepend=0.0) > 0
        weights = torch.zeros(len(self.prompts))
        for chain, chance in zip(compress(self.prompt_chains, drawn), chances[drawn], strict=True):
            weights[list(chain)] = 1 / chance
        turn_weights = weights[self.prompt_index]
        return replace(self, turn_weights=turn_weights).where(turn_weights > 0)

    def minibatches(self, size: int, order: Sequence[int]) -> Iterator[ResponseBatch]:
        """One pass over the prompt chains in the given order: `size` prompts at a time, or distinct
        responses, each with every turn that had it. So a pass computes each of them once, however often it
        was met."""
        parts = self.split(size, order)
        for part in parts:
            yield self.select(part, loss_scale=self.loss_scale * len(parts))

    def split(self, size: int, order: Sequence[int]) -> list[Tensor]:
        """The turns of each minibatch, int64."""
        if self.by_prompt:
            counts = torch.bincount(self.prompt_index, minlength=len(self.prompts))
            starts = counts.cumsum(0) - counts
            parts = _balanced(self.prompt_chains, counts.tolist(), size, order)
            return [
                torch.cat([torch.arange(int(starts[p]), int(starts[p] + counts[p])) for p in part])
                for part in parts
            ]
        turns: dict[int, dict[int, list[int]]] = {}  # by prompt, and by response
        for turn, (prompt, response) in enumerate(
            zip(self.prompt_index.tolist(), self._responses(), strict=True)
        ):
            turns.setdefault(prompt, {}).setdefault(response, []).append(turn)
        groups = [same for n in order for prompt in self.prompt_chains[n] for same in turns[prompt].values()]
        return [
            torch.tensor([turn for same in groups[start : start + size] for turn in same])
            for start in range(0, len(groups), size)
        ]

    def distinct(self) -> tuple[ResponseBatch, Tensor]:
        """Every response to every prompt once, and [B] int64 which of them each turn gave."""
        rows = self._responses()
        first_turns = np.unique(rows, return_index=True)[1]
        return self.select(torch.from_numpy(first_turns), self.loss_scale), torch.tensor(rows)

    def records(self, tokenizer: Any) -> Iterator[dict[str, Any]]:
        """A prompt per record with its turns, as a person reads them."""
        for number, prompt in enumerate(self.prompts):
            turns = (self.prompt_index == number).nonzero().flatten()
            record = {
                "prompt": tokenizer.decode(list(prompt.token_ids)),
                "candidates": prompt.candidates,
                "responses": [tokenizer.decode(list(self.response_ids[turn])) for turn in turns.tolist()],
                "choices": self.choices[turns].tolist(),
                "old_logprobs": self.old_logprobs[turns].tolist(),
                "advantages": self.advantages[turns].tolist(),
            }
            returns = {} if self.returns is None else {"returns": self.returns[turns].tolist()}
            yield record | returns

    def _responses(self) -> list[int]:
        """B numbers, equal where prompt and response are, in the order in which they come first."""
        numbers: dict[tuple[int, tuple[int, ...], int], int] = {}
        keys = zip(self.prompt_index.tolist(), self.response_ids, self.choices.tolist(), strict=True)
        return [numbers.setdefault(key, len(numbers)) for key in keys]


def inclusion_probabilities(sizes: np.ndarray, count: float) -> np.ndarray:
    """Probabilities in proportion to [n] sizes above 0, at most 1, that add up to `count`, at most n."""
    chances = np.zeros(len(sizes))
    certain = np.zeros(len(sizes), dtype=bool)
    while True:
        chances[~certain] = sizes[~certain] * (count - certain.sum()) / sizes[~certain].sum()
        chances[certain] = 1.0
        if not (chances > 1.0).any():
            return chances
        certain |= chances >= 1.0


def _balanced(
    chains: Sequence[Sequence[int]], turns: Sequence[int], size: int, order: Sequence[int]
) -> list[list[int]]:
    """Chains in the given order as minibatches of `size` prompts, or as many more as the last chain has. Each
    goes where the fewest turns are yet: under gradient clipping, and with Adam, minibatches of few turns
    would count too much."""
    parts: list[list[int]] = [[] for _ in range(-(-sum(map(len, chains)) // size))]
    open_parts = [(0, number) for number in range(len(parts))]
    for n in order:
        held, number = heappop(open_parts)
        parts[number] += chains[n]
        if len(parts[number]) < size:
            heappush(open_parts, (held + sum(turns[prompt] for prompt in chains[n]), number))
    return [part for part in parts if part]


def pad_rows(rows: Sequence[Sequence[float]]) -> Tensor:
    """Rows of unequal lengths as one tensor, padded with 0."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
