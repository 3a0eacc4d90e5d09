"""A choice between candidate texts, by the likelihood that the language model gives them behind what was said
before."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from lgym.batch import pad_rows
from lgym.functional import candidate_logprobs
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import TokenIds
from lgym.rollout import Prompt
from lgym.types import ConfigError

LengthNormalization = Literal["none", "token", "word"]

END = -1  # stands for the end-of-sequence token


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
        return all(len(ids) == 1 for ids in prompt.candidate_ids) and len(set(self._lengths(prompt))) <= 1

    def sequences(self, prompts: Sequence[Prompt]) -> list[list[TokenIds]]:
        """Token sequences to run behind each prompt to score its candidates: all but each last token, or with
        constrained decoding up to the last token that there is a choice of."""
        if all(map(self.needs_only_ends, prompts)):
            return [[()] for _ in prompts]
        if self.constrained:
            return [_up_to_the_last_choice(prompt.candidate_ids) for prompt in prompts]
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
        lengths = pad_rows([self._lengths(prompt) for prompt in prompts]).to(states.device)
        mask = lengths > 0
        if all(map(self.needs_only_ends, prompts)):
            tokens = pad_rows([[ids[0] for ids in prompt.candidate_ids] for prompt in prompts])
            ends = torch.tensor([rows[0][0] for rows in places], device=states.device)
            scores = llm.lm_head.chosen_logits(states[ends], tokens.to(states.device))
        else:
            terms_of = _constrained_terms if self.constrained else _terms
            terms, targets = terms_of(llm, prompts, states, places)
            index = torch.tensor(targets, dtype=torch.int64, device=terms.device)
            sums = terms.new_zeros(sum(map(len, places))).index_add(0, index, terms)
            scores = terms.new_zeros(mask.shape).masked_scatter(mask, sums)
        return candidate_logprobs(scores, lengths, mask, temperature=self.temperature)

    def _lengths(self, prompt: Prompt) -> list[int]:
        """The length that divides the log-likelihood of each candidate."""
        if self.length_normalization == "token":
            return [len(ids) for ids in prompt.candidate_ids]
        if self.length_normalization == "word":
            return [max(1, len(text.split())) for text in prompt.candidates]
        return [1] * len(prompt.candidates)


def _terms(
    llm: ValueHeadLLM, prompts: Sequence[Prompt], states: Tensor, places: Sequence[Sequence[Sequence[int]]]
) -> tuple[Tensor, list[int]]:
    """Log-probabilities [n] of the tokens of all candidates, and the number of the candidate of each."""
    candidates = [ids for prompt in prompts for ids in prompt.candidate_ids]
    rows = [row for of_prompt in places for of_candidate in of_prompt for row in of_candidate]
    tokens = torch.tensor([[token] for ids in candidates for token in ids], device=states.device)
    logits = llm.lm_head.chosen_logits(states[rows], tokens).squeeze(1)
    targets = [number for number, ids in enumerate(candidates) for _ in ids]
    return logits - llm.lm_head.log_normalizers(states)[rows], targets


def _constrained_terms(
    llm: ValueHeadLLM, prompts: Sequence[Prompt], states: Tensor, places: Sequence[Sequence[Sequence[int]]]
) -> tuple[Tensor, list[int]]:
    """`_terms` of the steps at which there is a choice, among the tokens that are allowed there.

    These are scored once, for all candidates that pass there.
    """
    numbers = count()
    rows: list[int] = []  # of `states`, by choice
    options: list[list[int]] = []  # tokens that are allowed, by choice
    steps: list[tuple[int, int]] = []  # a choice and the position of the token taken there
    targets: list[int] = []
    for prompt, of_prompt in zip(prompts, places, strict=True):
        choices = _choices(prompt.candidate_ids)
        known: dict[TokenIds, int] = {}
        for ids, of_candidate, number in zip(prompt.candidate_ids, of_prompt, numbers, strict=False):
            for step, token in enumerate((*ids, END)):
                if (tokens := choices.get(ids[:step])) is None:
                    continue
                if ids[:step] not in known:
                    known[ids[:step]] = len(rows)
                    rows.append(of_candidate[step])
                    options.append(tokens)
                steps.append((known[ids[:step]], tokens.index(token)))
                targets.append(number)
    if not rows:  # one candidate each: nothing to choose, and still a gradient, of 0
        return states[:0, 0].to(torch.promote_types(states.dtype, torch.float32)), targets
    token_ids = torch.tensor([[token] for tokens in options for token in tokens], device=states.device)
    token_ids = token_ids.masked_fill(token_ids == END, int(llm.tokenizer.eos_token_id))
    state_rows = [row for row, tokens in zip(rows, options, strict=True) for _ in tokens]
    logits = llm.lm_head.chosen_logits(states[state_rows], token_ids).squeeze(1)
    real = pad_rows([[1] * len(tokens) for tokens in options]).bool().to(states.device)
    table = logits.new_full(real.shape, -torch.inf).masked_scatter(real, logits)
    choice, position = torch.tensor(steps, device=states.device).T
    return table.log_softmax(-1)[choice, position], targets


def _choices(candidates: Sequence[TokenIds]) -> dict[TokenIds, list[int]]:
    """The beginnings of candidates behind which there is a choice, with the tokens that are allowed there,
    `END` where a candidate ends."""
    allowed: dict[TokenIds, set[int]] = {}
    for ids in candidates:
        for step, token in enumerate((*ids, END)):
            allowed.setdefault(ids[:step], set()).add(token)
    return {written: sorted(tokens) for written, tokens in allowed.items() if len(tokens) > 1}


def _up_to_the_last_choice(candidates: Sequence[TokenIds]) -> list[TokenIds]:
    choices = _choices(candidates)
    return [
        ids[: max((step for step in range(len(ids) + 1) if ids[:step] in choices), default=0)]
        for ids in candidates
    ]
