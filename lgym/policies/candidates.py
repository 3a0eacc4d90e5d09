"""The candidate policy: the agent lists its legal answers as text, and the language model chooses between them.

pi(c | prompt) = softmax over c of  log p(tokens of c | prompt) / (length of c) / temperature

with the length in tokens (`token`), words (`word`) or left out (`sum`). Scoring legal answers instead of writing free text
is GLAM's idea (Carta et al. 2023, arXiv:2302.02662, section 3.1); normalising by tokens or words TWOSOME's (Tan et al. 2024,
arXiv:2401.14151, section 4.2). No answer can fail to parse, and the probability of every action is known exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from lgym.batch import Context
from lgym.functional import candidate_logprobs
from lgym.models.llm import ValueHeadLLM
from lgym.models.packing import common_prefix_length


class CandidatePolicy(nn.Module):
    """Softmax over the log-likelihoods of the agent's candidate answers."""

    llm: ValueHeadLLM
    speaks = False
    max_new_tokens = 0

    def __init__(
        self,
        normalisation: Literal["sum", "token", "word"] = "sum",
        temperature: float = 1.0,
        tokens_per_forward: int = 4096,
        row_length: int = 64,
        share_prefixes: bool = True,
    ) -> None:
        """
        Args:
            normalisation: divide a candidate's log-likelihood by nothing (sum), its tokens or its words. With sum, long
                answers are unlikely ones.
            temperature: of the softmax over candidates, in playing and in learning alike; above 1 is closer to uniform.
            tokens_per_forward: about how many tokens one forward pass takes while playing; bounds memory, not results.
            row_length: places of a packed row. Longer rows share more and attend more; results are the same.
            share_prefixes: compute what prompts and candidates have in common once. Off, every sequence is run whole:
                slower, for comparison.
        """
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; it must be above 0. Evaluation has a greedy mode of its own.")
        if row_length < 1 or tokens_per_forward < 1:
            raise ValueError(f"row_length ({row_length}) and tokens_per_forward ({tokens_per_forward}) must be 1 or more.")
        self.normalisation = normalisation
        self.temperature = temperature
        self.tokens_per_forward = tokens_per_forward
        self.row_length = row_length
        self.share_prefixes = share_prefixes
        self.detach_value = False

    def bind(self, llm: ValueHeadLLM) -> None:
        """Gives the policy its model; called once, when the model is built."""
        llm.share = self.share_prefixes
        self.llm = llm

    def forward(self, contexts: Sequence[Context]) -> tuple[Tensor, Tensor]:
        """Log-probabilities [U, C] of the candidates of each context, padded with -inf, and values [U]; differentiable."""
        plain = all(self._needs_no_normaliser(context) for context in contexts)
        sequences, lengths, owners = _sequences(contexts, only_prompts=plain)
        states, index = self.llm.hidden_states(sequences, lengths, row_length=self.row_length)
        first = {owner: rows[0] for owner, rows in zip(owners, index, strict=True)}
        ends = states[[first[u] for u in range(len(contexts))]]
        scores = self._single_token_scores(contexts, ends) if plain else self._scores(contexts, states, index)
        divisors = [[self._length(context, c) for c in range(len(context.candidates))] for context in contexts]
        logprobs = candidate_logprobs(
            scores,
            _pad(divisors, 1).to(scores),
            _mask(contexts).to(scores.device),
            temperature=self.temperature,
        )
        return logprobs, self.llm.values(ends.detach() if self.detach_value else ends)

    @torch.no_grad()
    def evaluate(self, contexts: Sequence[Context]) -> tuple[Tensor, Tensor]:
        """`forward` for any number of contexts, in passes of bounded size; returns CPU tensors, at least fp32."""
        width = max(len(context.candidates) for context in contexts)
        logprobs = torch.full((len(contexts), width), -torch.inf)
        values = torch.zeros(len(contexts), dtype=torch.float32)
        for chunk in self._chunks(contexts):
            chunk_logprobs, chunk_values = self([contexts[i] for i in chunk])
            logprobs = logprobs.to(chunk_logprobs.dtype)
            logprobs[chunk, : chunk_logprobs.shape[1]] = chunk_logprobs.cpu()
            values = values.to(chunk_values.dtype)
            values[chunk] = chunk_values.cpu()
        return logprobs, values

    def _chunks(self, contexts: Sequence[Context]) -> Iterator[list[int]]:
        """Neighbours in sorted order share the most, and are of like length."""
        shared = common_prefix_length([context.prompt_ids for context in contexts]) if self.share_prefixes else 0
        chunk: list[int] = []
        tokens = 0
        for i in sorted(range(len(contexts)), key=lambda i: contexts[i].prompt_ids):
            size = len(contexts[i].prompt_ids) - shared + sum(len(ids) - 1 for ids in contexts[i].candidate_ids)
            if chunk and tokens + size > self.tokens_per_forward:
                yield chunk
                chunk, tokens = [], 0
            chunk.append(i)
            tokens += size
        yield chunk

    def _length(self, context: Context, candidate: int) -> int:
        if self.normalisation == "token":
            return len(context.candidate_ids[candidate])
        if self.normalisation == "word":
            return max(1, len(context.candidates[candidate].split()))
        return 1

    def _needs_no_normaliser(self, context: Context) -> bool:
        """With one token each and one length for all, the vocabulary's normaliser is the same and cancels out."""
        return all(len(ids) == 1 for ids in context.candidate_ids) and (
            self.normalisation != "word" or len({self._length(context, c) for c in range(len(context.candidates))}) == 1
        )

    def _single_token_scores(self, contexts: Sequence[Context], ends: Tensor) -> Tensor:
        """[U, C] log-likelihoods up to a constant of each context."""
        tokens = _pad([[ids[0] for ids in context.candidate_ids] for context in contexts], 0)
        return self.llm.chosen_logits(ends, tokens.to(ends.device))

    def _scores(self, contexts: Sequence[Context], states: Tensor, index: list[list[int]]) -> Tensor:
        """[U, C] log-likelihoods, each the sum over the candidate's tokens."""
        width = max(len(context.candidates) for context in contexts)
        rows: list[int] = []
        tokens: list[int] = []
        targets: list[int] = []
        candidates = ((u, c, ids) for u, context in enumerate(contexts) for c, ids in enumerate(context.candidate_ids))
        for (u, c, ids), places in zip(candidates, index, strict=True):
            rows += places
            tokens += ids
            targets += [u * width + c] * len(ids)
        logits = self.llm.chosen_logits(states[rows], torch.tensor(tokens, device=states.device)[:, None]).squeeze(1)
        logprobs = logits - self.llm.log_normalisers(states)[rows]
        scores = logprobs.new_zeros(len(contexts) * width)
        return scores.index_add(0, torch.tensor(targets, device=states.device), logprobs).view(-1, width)


def _sequences(contexts: Sequence[Context], *, only_prompts: bool) -> tuple[list[tuple[int, ...]], list[int], list[int]]:
    """What has to be run: a prompt with all but the last token of each candidate; prompt lengths; owning contexts."""
    sequences, lengths, owners = [], [], []
    for u, context in enumerate(contexts):
        for ids in context.candidate_ids[:1] if only_prompts else context.candidate_ids:
            sequences.append(context.prompt_ids + ids[:-1])
            lengths.append(len(context.prompt_ids))
            owners.append(u)
    return sequences, lengths, owners


def _pad(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Lists of unequal length as one [U, C] int64 tensor."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def _mask(contexts: Sequence[Context]) -> Tensor:
    """[U, C] bool: where there is a candidate."""
    counts = torch.tensor([len(context.candidates) for context in contexts])
    return torch.arange(int(counts.max())) < counts[:, None]
