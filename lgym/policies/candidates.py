"""The candidate policy: the agent lists its legal answers as text, and the language model chooses between them.

pi(c | prompt) = softmax over c of  log p(tokens of c | prompt) / (length of c) / temperature

with the length in tokens (`token`), words (`word`) or left out (`sum`); or token by token along the trie of the legal
answers (`trie`, see `lgym/policies/choice.py`). Scoring legal answers instead of writing free text
is GLAM's idea (Carta et al. 2023, arXiv:2302.02662, section 3.1); normalising by tokens or words TWOSOME's (Tan et al. 2024,
arXiv:2401.14151, section 4.2). No answer can fail to parse, and the probability of every action is known exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from lgym.batch import Context, Likelihoods, Reply, ReplyBatch
from lgym.functional import categorical_entropy
from lgym.models.limits import tokens_per_forward
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.branches import build_token_trie, run_branches
from lgym.models.prefix_sharing.kv_cache import KVCache
from lgym.models.prefix_sharing.packing import split_micro_batches
from lgym.models.prefix_sharing.prefill import cached_prefix_lengths, evict_unused, prefill
from lgym.policies.choice import Choice, Normalisation


class CandidatePolicy(nn.Module):
    """Softmax over the log-likelihoods of the agent's candidate answers."""

    llm: ValueHeadLLM
    speaks = False
    chooses = True
    max_new_tokens = 0

    def __init__(
        self,
        normalisation: Normalisation = "sum",
        temperature: float = 1.0,
        tokens_per_forward: int | None = None,
        row_length: int = 64,
        share_prefixes: bool = True,
    ) -> None:
        """
        Args:
            normalisation: divide a candidate's log-likelihood by nothing (sum), its tokens or its words. With sum, long
                answers are unlikely ones. Or trie: what writing them token by token gives, when nothing else is allowed.
            temperature: of the softmax over candidates, in playing and in learning alike; above 1 is closer to uniform.
            tokens_per_forward: about how many tokens one forward pass takes while playing; bounds memory, not results. Null
                is 1,024 on a CPU, whose caches hold the activations of no more, and 16,384 elsewhere.
            row_length: places of a packed row. Longer rows share more and attend more; results are the same.
            share_prefixes: compute what prompts and candidates have in common once. Off, every sequence is run whole:
                slower, for comparison.
        """
        super().__init__()
        if row_length < 1 or (tokens_per_forward is not None and tokens_per_forward < 1):
            raise ValueError(f"row_length ({row_length}) and tokens_per_forward ({tokens_per_forward}) must be 1 or more.")
        self.choice = Choice(normalisation, temperature)
        self.tokens_per_forward = tokens_per_forward
        self.row_length = row_length
        self.share_prefixes = share_prefixes
        self.detach_value = False

    @property
    def has_critic(self) -> bool:
        """Whether its model has a value head."""
        return self.llm.value_head is not None

    def bind(self, llm: ValueHeadLLM) -> None:
        """Gives the policy its model; called once, when the model is built."""
        llm.share_prefixes = self.share_prefixes
        self.llm = llm

    def forward(self, contexts: Sequence[Context]) -> tuple[Tensor, Tensor]:
        """Log-probabilities [U, C] of the candidates of each context, padded with -inf, and values [U]; differentiable."""
        ends = [
            [context.prompt_ids + ids for ids in own]
            for context, own in zip(contexts, self.choice.sequences(contexts), strict=True)
        ]
        sequences = [sequence for own in ends for sequence in own]
        lengths = [len(context.prompt_ids) for context, own in zip(contexts, ends, strict=True) for _ in own]
        states, index = self.llm.hidden_states(sequences, lengths, row_length=self.row_length)
        rows = iter(index)
        places = [[next(rows) for _ in own] for own in ends]
        at_ends = states[[own[0][0] for own in places]]
        logprobs = self.choice.logprobs(self.llm, contexts, states, places)
        return logprobs, self.llm.values(at_ends.detach() if self.detach_value else at_ends)

    def likelihoods(self, batch: ReplyBatch, *, entropy_gradient: bool = False) -> Likelihoods:
        """A choice as a reply of one token: log-probabilities, entropies and values, [B, 1]."""
        logprobs, values = self(batch.contexts)
        rows = batch.rows
        return Likelihoods(
            logprobs=logprobs[rows, batch.choices][:, None],
            entropy=categorical_entropy(logprobs)[rows][:, None],
            values=values[rows][:, None],
        )

    def demonstrated(self, context: Context, text: str, ids: tuple[int, ...], choice: int) -> Reply:
        """A reply that is to be imitated: this choice."""
        return Reply(context.candidate_ids[choice][:1], (0.0,), True, text, choice=choice)

    @torch.no_grad()
    def evaluate(self, contexts: Sequence[Context], *, going_on: Sequence[Context] = ()) -> tuple[Tensor, Tensor]:
        """`forward` for any number of contexts, in passes of bounded size; returns CPU tensors, at least fp32.

        Later prompts go on from those of the contexts in `going_on`: their keys and values are kept while the weights are
        fixed, so that of each later prompt only what is new is computed.
        """
        keep = bool(going_on) and self.share_prefixes and self.llm.layout == "tree"
        width = max(len(context.candidates) for context in contexts)
        logprobs = torch.full((len(contexts), width), -torch.inf)
        values = torch.zeros(len(contexts), dtype=torch.float32)
        kv_caches = evict_unused(self.llm.kv_caches, {c.prompt_ids for c in going_on}) if keep else []
        for chunk in self._passes(contexts, keep=keep):
            part = [contexts[i] for i in chunk]
            if keep:
                chunk_logprobs, chunk_values, kv_cache = self._go_on(part)
                kv_caches.append(kv_cache)
            else:
                chunk_logprobs, chunk_values = self(part)
            logprobs = logprobs.to(chunk_logprobs.dtype)
            logprobs[chunk, : chunk_logprobs.shape[1]] = chunk_logprobs.cpu()
            values = values.to(chunk_values.dtype)
            values[chunk] = chunk_values.cpu()
        if keep:
            self.llm.store_kv(kv_caches)
        return logprobs, values

    def _go_on(self, contexts: Sequence[Context]) -> tuple[Tensor, Tensor, KVCache]:
        """As `forward`, from the kv_caches that the model keeps; and the kv_cache of these prompts."""
        ends = self.choice.sequences(contexts)
        prompts = [context.prompt_ids for context in contexts]
        room = max(len(build_token_trie(own)) for own in ends)
        kv_cache, hidden = prefill(self.llm, prompts, self.llm.kv_caches, free_slots=room, row_length=self.row_length)
        states, places = run_branches(self.llm, kv_cache, hidden, ends)
        return self.choice.logprobs(self.llm, contexts, states, places), self.llm.values(hidden), kv_cache

    def _passes(self, contexts: Sequence[Context], *, keep: bool) -> Iterator[list[int]]:
        """Contexts that are evaluated together."""
        prompts = [context.prompt_ids for context in contexts]
        limit = self.tokens_per_forward or tokens_per_forward(self.llm.device)
        known = cached_prefix_lengths(prompts, self.llm.kv_caches) if keep else ()
        extra = [len(build_token_trie(own)) for own in self.choice.sequences(contexts)]
        return split_micro_batches(prompts, limit, cached_lengths=known, extra_tokens=extra)
