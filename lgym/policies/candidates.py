"""The candidate-scoring policy: the agent lists its legal answers as text, and the language model chooses
between them.

pi(c | prompt) = softmax over c of  log p(tokens of c | prompt) / (length of c) / temperature

with the length in tokens, in words, or left out; or token by token along the trie of the legal answers
(constrained decoding, see `lgym/policies/choice.py`). Scoring legal answers is GLAM's idea (Carta et al.
2023, arXiv:2302.02662, section 3.1); normalizing by tokens or words is TWOSOME's (Tan et al. 2024,
arXiv:2401.14151, section 4.2). No answer can fail to parse, and the probability of every action is known
exactly.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lgym.batch import PolicyOutput, ResponseBatch
from lgym.functional import categorical_entropy, categorical_kl
from lgym.models.action_value_head import text_embeddings
from lgym.models.prefix_sharing.branches import build_token_trie, run_branches
from lgym.models.prefix_sharing.kv_cache import KVCache
from lgym.models.prefix_sharing.packing import split_micro_batches, tokens_per_forward
from lgym.models.prefix_sharing.prefill import cached_prefix_lengths, evict_unused, prefill
from lgym.policies.choice import Choice, LengthNormalization
from lgym.policies.distribution_cache import DistributionCache, choice_response, weights_digest
from lgym.policies.policy import LLMPolicy, Prompts, Rng
from lgym.rollout import Prompt, Response
from lgym.types import ConfigError


class CandidatePolicy(LLMPolicy):
    """Softmax over the log-likelihoods of the agent's candidate answers."""

    generates_text = False
    scores_candidates = True
    max_new_tokens = 0

    def __init__(
        self,
        length_normalization: LengthNormalization = "none",
        constrained_decoding: bool = False,
        temperature: float = 1.0,
        tokens_per_forward: int | None = None,
        row_length: int = 64,
        share_prefixes: bool = True,
    ) -> None:
        """
        Args:
            length_normalization: divide a candidate's log-likelihood by nothing (none), its tokens or its
                words. With none, long answers are unlikely ones.
            constrained_decoding: take the probability of writing the candidate token by token where nothing
                but the candidates is allowed, in place of a softmax over whole candidates.
            temperature: of the softmax over candidates, at rollout time and in training alike; above 1 is
                closer to uniform.
            tokens_per_forward: about how many tokens one forward pass of a rollout takes; bounds memory, not
                results. Null is 1,024 on a CPU, whose caches hold the activations of no more, and 16,384
                elsewhere.
            row_length: tokens of a packed row. Longer rows share more and attend more; results are the same.
            share_prefixes: compute the common beginnings of prompts and candidates once. Off, every sequence
                is run whole: slower, for comparison.
        """
        super().__init__(row_length, share_prefixes)
        if tokens_per_forward is not None and tokens_per_forward < 1:
            raise ConfigError(f"tokens_per_forward is {tokens_per_forward}; it must be 1 or more.")
        self.choice = Choice(length_normalization, temperature, constrained_decoding)
        self.tokens_per_forward = tokens_per_forward
        self._cache = DistributionCache()
        self._cache_session: object = None
        self._prefetched: tuple[object, tuple[Tensor, Tensor]] | None = None

    def forward(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """[U, C] log-probabilities of the candidates of each prompt, padded with -inf, and [U] values;
        differentiable."""
        logprobs, states = self._run(prompts)
        return logprobs, self.llm.values(states)

    def action_values(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
        """`forward`, and [U, C, 2] twin action values of the candidates by the action-value head, whatever
        where there is no candidate; differentiable."""
        logprobs, states = self._run(prompts)
        embed = self.llm.causal_lm.get_input_embeddings()
        embeddings = text_embeddings(embed, [prompt.candidate_ids for prompt in prompts])
        assert self.llm.action_value_head is not None
        q = self.llm.action_value_head.action_values(states, embeddings)
        return logprobs, self.llm.values(states), q

    def _run(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """[U, C] log-probabilities, and the [U, H] hidden states that values are read from."""
        token_ids = [prompt.token_ids for prompt in prompts]
        ends = self.choice.sequences(prompts)
        states, positions = self._run_continuations(token_ids, list(map(len, token_ids)), ends)
        prompt_states = states[[of_prompt[0][0] for of_prompt in positions]]
        logprobs = self.choice.logprobs(self.llm, prompts, states, positions)
        return logprobs, prompt_states.detach() if self.detach_value else prompt_states

    def evaluate_actions(self, batch: ResponseBatch, *, entropy_gradient: bool = False) -> PolicyOutput:
        """See `LLMPolicy`; T = 1, since a choice is one decision, whose whole distribution is known."""
        logprobs, values = self(batch.prompts)
        rows, old, ref = batch.prompt_index, batch.old_candidate_logprobs, batch.ref_candidate_logprobs
        return PolicyOutput(
            old_kl=None if old is None else categorical_kl(old, logprobs)[rows][:, None],
            logprobs=logprobs[rows, batch.choices][:, None],
            values=values[rows][:, None],
            entropy=categorical_entropy(logprobs)[rows][:, None],
            ref_kl=None if ref is None else categorical_kl(logprobs, ref)[rows][:, None],
            candidate_logprobs=logprobs,
        )

    def demonstrated(self, prompt: Prompt, text: str, token_ids: tuple[int, ...], choice: int) -> Response:
        return choice_response(prompt, choice)

    def act(
        self, prompts: Prompts, rng: Rng, *, keep_kv_cache: bool = True, bootstrap: Prompts = ()
    ) -> tuple[list[Response], Tensor]:
        """See `LLMPolicy`. Each distinct prompt is computed once while the weights are frozen."""
        cache = self._distributions([*bootstrap, *prompts], extendable=prompts if keep_kv_cache else ())
        return cache.act(prompts, rng, self.epsilon), torch.from_numpy(cache.values[cache.index(prompts)])

    def values(self, prompts: Sequence[Prompt]) -> Tensor:
        cache = self._distributions(prompts)
        return torch.from_numpy(cache.values[cache.index(prompts)])

    def distributions(self, prompts: Sequence[Prompt]) -> Tensor:
        """[n, C] log-probabilities of the candidates of prompts on the CPU, padded with -inf, without
        gradient."""
        cache = self._distributions(prompts)
        return torch.from_numpy(cache.logprobs[cache.index(prompts)])

    def prefetch(self, prompts: Sequence[Prompt]) -> None:
        """Compute distributions in one large batch, which costs less than the small ones in which a rollout
        meets its prompts.

        They are kept until the weights change. The batch depends on the prompts alone, so a run that is
        resumed computes the same to the last bit.
        """
        key = (weights_digest(self), list(prompts))
        if self._prefetched is None or self._prefetched[0] != key:
            self._prefetched = key, self._compute(prompts, ())
        self._distributions(()).add(prompts, *self._prefetched[1])

    def _distributions(
        self, prompts: Sequence[Prompt], extendable: Sequence[Prompt] = ()
    ) -> DistributionCache:
        """The cache with these prompts in it: a new one unless the weights have been frozen since the last
        call."""
        session = self.llm.frozen_session
        if session is None or session is not self._cache_session:
            self._cache, self._cache_session = DistributionCache(), session
        if missing := self._cache.missing(prompts):
            self._cache.add(missing, *self._compute(missing, extendable))
        return self._cache

    @torch.no_grad()
    def _compute(self, prompts: Sequence[Prompt], extendable: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """`forward` for any number of prompts, in passes of bounded size; CPU tensors in fp32.

        Later prompts extend the `extendable` ones: their keys and values are kept while the weights are
        frozen, so that of each later prompt only what is new is computed.
        """
        keep = bool(extendable) and self.share_prefixes and self.llm.layout == "tree"
        width = max(len(prompt.candidates) for prompt in prompts)
        logprobs = torch.full((len(prompts), width), -torch.inf, dtype=torch.float32)
        values = torch.zeros(len(prompts), dtype=torch.float32)
        kv_caches = (
            evict_unused(self.llm.kv_caches, {prompt.token_ids for prompt in extendable}) if keep else []
        )
        for chunk in self._chunks(prompts, keep=keep):
            chunk_prompts = [prompts[i] for i in chunk]
            if keep:
                chunk_logprobs, chunk_values, kv_cache = self._extend(chunk_prompts)
                kv_caches.append(kv_cache)
            else:
                chunk_logprobs, chunk_values = self(chunk_prompts)
            logprobs[chunk, : chunk_logprobs.shape[1]] = chunk_logprobs.float().cpu()
            values[chunk] = chunk_values.float().cpu()
        if keep:
            self.llm.store_kv(kv_caches)
        return logprobs, values

    def _extend(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, KVCache]:
        """`forward` from the keys and values that the model keeps, and those of these prompts."""
        ends = self.choice.sequences(prompts)
        kv_cache, hidden = prefill(
            self.llm,
            [prompt.token_ids for prompt in prompts],
            self.llm.kv_caches,
            free_slots=max(len(build_token_trie(of_prompt)) for of_prompt in ends),
            row_length=self.row_length,
        )
        states, positions = run_branches(self.llm, kv_cache, hidden, ends)
        return self.choice.logprobs(self.llm, prompts, states, positions), self.llm.values(hidden), kv_cache

    def _chunks(self, prompts: Sequence[Prompt], *, keep: bool) -> Iterator[list[int]]:
        """Positions of the prompts that are evaluated together."""
        token_ids = [prompt.token_ids for prompt in prompts]
        return split_micro_batches(
            token_ids,
            self.tokens_per_forward or tokens_per_forward(self.llm.device),
            cached_lengths=cached_prefix_lengths(token_ids, self.llm.kv_caches) if keep else (),
            extra_tokens=[len(build_token_trie(of_prompt)) for of_prompt in self.choice.sequences(prompts)],
        )
