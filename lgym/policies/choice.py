"""A choice between candidate texts, by the likelihood that the language model gives them behind what was said before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lgym.batch import Context
from lgym.functional import candidate_logprobs
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import TokenIds

Normalisation = Literal["sum", "token", "word", "trie"]


@dataclass(frozen=True)
class Choice:
    """The distribution over the candidates of a context.

    sum, token, word:  softmax over c of  log p(tokens of c) / (1, tokens or words of c) / temperature
    trie:              product over the tokens of c of  p(token) / p(any token that goes on to a candidate there)

    The second is what sampling token by token gives, where at each step only tokens are allowed that lead to a candidate;
    one that others go on from ends with the end-of-sequence token. (Constrained decoding along a trie: De Cao et al. 2021,
    arXiv:2010.00904, section 3.2.)
    """

    normalisation: Normalisation = "sum"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(
                f"temperature is {self.temperature}; it must be above 0. Evaluation has a greedy mode of its own."
            )

    def needs_only_ends(self, context: Context) -> bool:
        """With one token each and one length for all, the vocabulary's normaliser is the same and cancels out."""
        return all(len(ids) == 1 for ids in context.candidate_ids) and (
            self.normalisation != "word" or len({self._length(context, c) for c in range(len(context.candidates))}) == 1
        )

    def sequences(self, contexts: Sequence[Context]) -> list[list[TokenIds]]:
        """What has to be run behind each context to score its candidates: all but the last token of each."""
        if all(map(self.needs_only_ends, contexts)):
            return [[()] for _ in contexts]
        return [[ids[:-1] for ids in context.candidate_ids] for context in contexts]

    def logprobs(
        self, llm: ValueHeadLLM, contexts: Sequence[Context], states: Tensor, places: Sequence[Sequence[Sequence[int]]]
    ) -> Tensor:
        """[U, C] log-probabilities, padded with -inf.

        Args:
            llm: whose vocabulary it is.
            contexts: U of them.
            states: [K, H] hidden states.
            places: for each context and each of its `sequences`, the rows of `states` from before its first token on.
        """
        if all(map(self.needs_only_ends, contexts)):
            tokens = _pad([[ids[0] for ids in context.candidate_ids] for context in contexts], 0)
            ends = torch.tensor([rows[0][0] for rows in places], device=states.device)
            scores = llm.lm_head.chosen_logits(states[ends], tokens.to(states.device))
        elif self.normalisation == "trie":
            scores = _trie_scores(llm, contexts, states, places)
        else:
            scores = _scores(llm, contexts, states, places)
        divisors = [[self._length(context, c) for c in range(len(context.candidates))] for context in contexts]
        return candidate_logprobs(
            scores, _pad(divisors, 1).to(scores), _mask(contexts).to(scores.device), temperature=self.temperature
        )

    def _length(self, context: Context, candidate: int) -> int:
        if self.normalisation == "token":
            return len(context.candidate_ids[candidate])
        if self.normalisation == "word":
            return max(1, len(context.candidates[candidate].split()))
        return 1


def _scores(
    llm: ValueHeadLLM, contexts: Sequence[Context], states: Tensor, places: Sequence[Sequence[Sequence[int]]]
) -> Tensor:
    """[U, C] log-likelihoods, each the sum over the candidate's tokens."""
    width = max(len(context.candidates) for context in contexts)
    rows: list[int] = []
    tokens: list[int] = []
    targets: list[int] = []
    for u, context in enumerate(contexts):
        for c, (ids, own) in enumerate(zip(context.candidate_ids, places[u], strict=True)):
            rows += own
            tokens += ids
            targets += [u * width + c] * len(ids)
    logits = llm.lm_head.chosen_logits(states[rows], torch.tensor(tokens, device=states.device)[:, None]).squeeze(1)
    return _summed(logits - llm.lm_head.log_normalizers(states)[rows], targets, len(contexts), width)


def _trie_scores(
    llm: ValueHeadLLM, contexts: Sequence[Context], states: Tensor, places: Sequence[Sequence[Sequence[int]]]
) -> Tensor:
    """[U, C] log-probabilities, each the sum over the steps of the candidate at which there was a choice."""
    width = max(len(context.candidates) for context in contexts)
    rows: list[int] = []
    options: list[list[int]] = []  # the first is the one taken
    targets: list[int] = []
    for u, context in enumerate(contexts):
        at, following = _trie(context.candidate_ids, places[u], int(llm.tokenizer.eos_token_id))
        for c, ids in enumerate(context.candidate_ids):
            for step, token in enumerate((*ids, int(llm.tokenizer.eos_token_id))):
                allowed = following.get(ids[:step], ())
                if len(allowed) > 1:
                    rows.append(at[ids[:step]])
                    options.append([token, *(other for other in allowed if other != token)])
                    targets.append(u * width + c)
    if not rows:  # one candidate each: nothing to choose, and still a gradient, of 0
        return (states[0, 0].to(torch.promote_types(states.dtype, torch.float32)) * 0.0).expand(len(contexts), width)
    real = torch.tensor([[i < len(o) for i in range(max(map(len, options)))] for o in options], device=states.device)
    logits = llm.lm_head.chosen_logits(states[rows], _pad(options, 0).to(states.device))
    taken = logits[:, 0] - logits.masked_fill(~real, -torch.inf).logsumexp(-1)
    return _summed(taken, targets, len(contexts), width)


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


def _mask(contexts: Sequence[Context]) -> Tensor:
    """[U, C] bool: where there is a candidate."""
    counts = torch.tensor([len(context.candidates) for context in contexts])
    return torch.arange(int(counts.max())) < counts[:, None]
