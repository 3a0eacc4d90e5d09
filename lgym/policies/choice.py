"""A choice between candidate texts, by the likelihood that the language model gives them behind what was said
before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lgym.functional import candidate_logprobs
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import TokenIds
from lgym.rollout import Prompt
from lgym.types import ConfigError

LengthNormalization = Literal["none", "token", "word"]


@dataclass(frozen=True)
class Choice:
    """The distribution over the candidates of a prompt.

    softmax over c of  log p(tokens of c) / (1, tokens or words of c) / temperature

    With constrained decoding, log p(tokens of c) is in place of the model's own

    sum over the tokens of c of  log p(token) / p(any token that leads on to a candidate there)

    as sampling token by token has it where no other token is allowed; a candidate that others begin with ends
    with the end-of-sequence token (De Cao et al. 2021, arXiv:2010.00904, section 3.2).
    """

    length_normalization: LengthNormalization = "none"
    temperature: float = 1.0
    constrained: bool = False

    def __post_init__(self) -> None:
        if self.constrained and self.length_normalization != "none":
            raise ConfigError(
                f"length_normalization is {self.length_normalization!r} and constrained_decoding is on, "
                "which gives probabilities as they are: set length_normalization: none, or "
                "constrained_decoding: false."
            )
        if self.temperature <= 0:
            raise ConfigError(
                f"temperature is {self.temperature}; it must be above 0. Evaluation has a greedy mode of its "
                "own."
            )

    def needs_only_ends(self, prompt: Prompt) -> bool:
        """With one token each and one length for all, the vocabulary's normalizer is the same and cancels
        out."""
        return all(len(ids) == 1 for ids in prompt.candidate_ids) and (
            self.length_normalization != "word"
            or len({self._length(prompt, c) for c in range(len(prompt.candidates))}) == 1
        )

    def sequences(self, prompts: Sequence[Prompt]) -> list[list[TokenIds]]:
        """Token sequences to run behind each prompt to score its candidates: all but each last token."""
        if all(map(self.needs_only_ends, prompts)):
            return [[()] for _ in prompts]
        return [[ids[:-1] for ids in prompt.candidate_ids] for prompt in prompts]

    def logprobs(
        self,
        llm: ValueHeadLLM,
        prompts: Sequence[Prompt],
        states: Tensor,
        places: Sequence[Sequence[Sequence[int]]],
    ) -> Tensor:
        """[U, C] log-probabilities, padded with -inf.

        Args:
            llm: whose vocabulary it is.
            prompts: U of them.
            states: [K, H] hidden states.
            places: for each prompt and each of its `sequences`, the rows of `states` from before its first
                token on.
        """
        if all(map(self.needs_only_ends, prompts)):
            tokens = _pad([[ids[0] for ids in prompt.candidate_ids] for prompt in prompts], 0)
            ends = torch.tensor([rows[0][0] for rows in places], device=states.device)
            scores = llm.lm_head.chosen_logits(states[ends], tokens.to(states.device))
        elif self.constrained:
            scores = _trie_scores(llm, prompts, states, places)
        else:
            scores = _scores(llm, prompts, states, places)
        divisors = [[self._length(prompt, c) for c in range(len(prompt.candidates))] for prompt in prompts]
        return candidate_logprobs(
            scores,
            _pad(divisors, 1).to(scores),
            _mask(prompts).to(scores.device),
            temperature=self.temperature,
        )

    def _length(self, prompt: Prompt, candidate: int) -> int:
        if self.length_normalization == "token":
            return len(prompt.candidate_ids[candidate])
        if self.length_normalization == "word":
            return max(1, len(prompt.candidates[candidate].split()))
        return 1


def _scores(
    llm: ValueHeadLLM, prompts: Sequence[Prompt], states: Tensor, places: Sequence[Sequence[Sequence[int]]]
) -> Tensor:
    """[U, C] log-likelihoods, each the sum over the candidate's tokens."""
    width = max(len(prompt.candidates) for prompt in prompts)
    rows: list[int] = []
    tokens: list[int] = []
    targets: list[int] = []
    for u, prompt in enumerate(prompts):
        for c, (ids, own) in enumerate(zip(prompt.candidate_ids, places[u], strict=True)):
            rows += own
            tokens += ids
            targets += [u * width + c] * len(ids)
    logits = llm.lm_head.chosen_logits(
        states[rows], torch.tensor(tokens, device=states.device)[:, None]
    ).squeeze(1)
    return _summed(logits - llm.lm_head.log_normalizers(states)[rows], targets, len(prompts), width)


def _trie_scores(
    llm: ValueHeadLLM, prompts: Sequence[Prompt], states: Tensor, places: Sequence[Sequence[Sequence[int]]]
) -> Tensor:
    """[U, C] log-probabilities, each the sum over the steps of the candidate at which there was a choice."""
    width = max(len(prompt.candidates) for prompt in prompts)
    rows: list[int] = []
    options: list[list[int]] = []  # the first is the one taken
    targets: list[int] = []
    for u, prompt in enumerate(prompts):
        at, following = _trie(prompt.candidate_ids, places[u], int(llm.tokenizer.eos_token_id))
        for c, ids in enumerate(prompt.candidate_ids):
            for step, token in enumerate((*ids, int(llm.tokenizer.eos_token_id))):
                allowed = following.get(ids[:step], ())
                if len(allowed) > 1:
                    rows.append(at[ids[:step]])
                    options.append([token, *(other for other in allowed if other != token)])
                    targets.append(u * width + c)
    if not rows:  # one candidate each: nothing to choose, and still a gradient, of 0
        return (states[0, 0].to(torch.promote_types(states.dtype, torch.float32)) * 0.0).expand(
            len(prompts), width
        )
    real = torch.tensor(
        [[i < len(o) for i in range(max(map(len, options)))] for o in options], device=states.device
    )
    logits = llm.lm_head.chosen_logits(states[rows], _pad(options, 0).to(states.device))
    taken = logits[:, 0] - logits.masked_fill(~real, -torch.inf).logsumexp(-1)
    return _summed(taken, targets, len(prompts), width)


def _trie(
    candidates: Sequence[TokenIds], places: Sequence[Sequence[int]], end: int
) -> tuple[dict[TokenIds, int], dict[TokenIds, list[int]]]:
    """By beginning: the row of its hidden state, and the tokens that may follow it."""
    at: dict[TokenIds, int] = {}
    following: dict[TokenIds, list[int]] = {}
    for ids, own in zip(candidates, places, strict=True):
        for step, (token, place) in enumerate(zip(ids, own, strict=True)):
            at.setdefault(ids[:step], place)
            tokens = following.setdefault(ids[:step], [])
            if token not in tokens:
                tokens.append(token)
    for ids in candidates:
        if ids in following:
            following[ids].append(end)
    return at, following


def _summed(terms: Tensor, targets: list[int], count: int, width: int) -> Tensor:
    scores = terms.new_zeros(count * width)
    return scores.index_add(0, torch.tensor(targets, device=terms.device), terms).view(-1, width)


def _pad(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Lists of unequal length as one [U, C] int64 tensor."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def _mask(prompts: Sequence[Prompt]) -> Tensor:
    """[U, C] bool: where there is a candidate."""
    counts = torch.tensor([len(prompt.candidates) for prompt in prompts])
    return torch.arange(int(counts.max())) < counts[:, None]
