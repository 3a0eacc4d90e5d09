"""Free text, token by token: how it is written, and how likely what was written is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lgym.batch import Context, Likelihoods, Reply, ReplyBatch
from lgym.models.generation.decoding import GenerationOutput, StopCheck, generate
from lgym.models.generation.sampling import SamplingParams
from lgym.models.limits import tokens_per_forward
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import TokenIds, common_prefix_length, split_micro_batches


@dataclass(frozen=True)
class Writer:
    """Writes up to `limit` tokens, until an end-of-turn token or one of the `stop` texts."""

    limit: int
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    row_length: int = 64
    at_once: int = 256
    cache_tokens: int = 65_536

    def __post_init__(self) -> None:
        if self.cache_tokens < 1:
            raise ValueError(f"kv_cache_tokens is {self.cache_tokens}; it must be 1 or more.")
        if self.at_once < 1:
            raise ValueError(f"replies_per_forward is {self.at_once}; it must be 1 or more.")
        if self.limit < 1:
            raise ValueError(f"max_new_tokens is {self.limit}; it must be 1 or more.")
        if self.sampling.temperature <= 0:
            raise ValueError(
                f"temperature is {self.sampling.temperature}; it must be above 0. Evaluation has a greedy mode of its own."
            )
        self.sampling.probabilities(torch.zeros(1, 2))  # refuses limits that leave nothing
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError(f"stop is {self.stop!r}; it must be a list of texts, none of them empty.")

    def parts(self, contexts: Sequence[Context]) -> Iterator[list[int]]:
        """The numbers of the contexts, those together that are written to together: at most `at_once` distinct ones, and
        as many as `cache_tokens` hold of their prompts, behind what all have in common, and replies; or one."""
        members: dict[Context, list[int]] = {}
        for number, context in enumerate(contexts):
            members.setdefault(context, []).append(number)
        shared = common_prefix_length([context.prompt_ids for context in members])
        part: list[list[int]] = []
        held = 0
        for context, own in members.items():
            size = len(context.prompt_ids) - shared + self.limit
            if part and (len(part) == self.at_once or held + size > self.cache_tokens):
                yield [number for numbers in part for number in numbers]
                part, held = [], 0
            part.append(own)
            held += size
        yield [number for numbers in part for number in numbers]

    def write(self, llm: ValueHeadLLM, prompts: Sequence[TokenIds], generator: torch.Generator | None, *, keep: bool) -> GenerationOutput:
        """A reply to each prompt, if wanted with its kv_cache; goes on from the kv_caches that the model keeps."""
        written = generate(
            llm,
            prompts,
            max_new_tokens=self.limit,
            stop_ids=stop_ids(llm),
            sampling_params=self.sampling,
            generator=generator,
            kv_caches=llm.kv_caches,
            stop_check=self._over(llm.tokenizer) if self.stop else None,
            row_length=self.row_length,
            max_num_seqs=self.at_once,
            keep_kv_cache=keep,
        )
        texts = self._texts(llm, written.responses)
        return replace(written, responses=[replace(r, text=text) for r, text in zip(written.responses, texts, strict=True)])

    def _texts(self, llm: ValueHeadLLM, replies: Sequence[Reply]) -> list[str]:
        """What replies say, without a stop token or text."""
        ends = stop_ids(llm)
        said = [list(reply.ids[:-1] if reply.ids[-1] in ends else reply.ids) for reply in replies]
        texts = llm.tokenizer.batch_decode(said, skip_special_tokens=True)
        return [self._cut(text) if reply.ended else text for text, reply in zip(texts, replies, strict=True)]

    def _cut(self, text: str) -> str:
        return text[: min((at for stop in self.stop if (at := text.find(stop)) >= 0), default=len(text))]

    def _over(self, tokenizer: object) -> StopCheck:
        most = max(len(stop.encode()) for stop in self.stop) + 4  # a token is a byte or more

        def over(replies: Sequence[TokenIds]) -> list[bool]:
            texts = tokenizer.batch_decode([ids[-most:] for ids in replies], skip_special_tokens=True)  # type: ignore[attr-defined]
            return [any(stop in text for stop in self.stop) for text in texts]

        return over


def stop_ids(llm: ValueHeadLLM) -> frozenset[int]:
    """The tokens that end a reply: the tokenizer's end of sequence, and those of the model's generation settings."""
    ends = llm.causal_lm.generation_config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else ends
    return frozenset({*ends, llm.tokenizer.eos_token_id} - {None})


def prompt_values(llm: ValueHeadLLM, contexts: Sequence[Context], row_length: int) -> Tensor:
    """[U] state values at the ends of prompts, in passes of bounded size; NaN without a value head."""
    if llm.value_head is None:
        return torch.full((len(contexts),), torch.nan)
    prompts = [context.prompt_ids for context in contexts]
    order: list[int] = []
    values: list[Tensor] = []
    for part in split_micro_batches(prompts, tokens_per_forward(llm.device)):
        own = [prompts[i] for i in part]
        states, index = llm.hidden_states(own, [len(p) for p in own], row_length=row_length)
        order += part
        values.append(llm.values(states[[rows[0] for rows in index]]).cpu())
    return torch.cat(values)[torch.tensor(order).argsort()]


def make_generator(llm: ValueHeadLLM, seed: int | None) -> torch.Generator | None:
    """Where the model's noise comes from: on a GPU itself, so that nothing waits for the CPU."""
    if seed is None:
        return None
    return torch.Generator("cuda" if llm.device.type == "cuda" else "cpu").manual_seed(seed)


def token_likelihoods(
    llm: ValueHeadLLM,
    batch: ReplyBatch,
    states: Tensor,
    places: Sequence[Sequence[int]],
    *,
    temperature: float,
    detach_value: bool,
    tokens: Tensor,
    entropy_gradient: bool,
) -> Likelihoods:
    """Of the tokens of replies that were drawn from the whole vocabulary.

    Args:
        llm: whose vocabulary and value head it is.
        batch: whose replies they are.
        states: [K, H] hidden states.
        places: for each reply, the rows of `states` from the end of its prompt on.
        temperature: of the softmax.
        detach_value: whether values have no gradient in the language model.
        tokens: [B, T] bool, which tokens to look at; the others are 0.
        entropy_gradient: whether entropies have one.
    """
    at = torch.zeros(tokens.shape, dtype=torch.int64)
    ids = torch.zeros(tokens.shape, dtype=torch.int64)
    for b, (own, reply) in enumerate(zip(places, batch.replies, strict=True)):
        count = min(len(own), tokens.shape[1])
        at[b, :count] = torch.tensor(own[:count])
        ids[b, : min(len(reply), tokens.shape[1])] = torch.tensor(reply[: tokens.shape[1]])
    at, ids = at.to(states.device), ids.to(states.device)
    values = llm.values(states.detach() if detach_value else states)[at]
    used, back = at[tokens].unique(return_inverse=True)  # each distinct state once
    logprobs, entropy = llm.lm_head.token_logprobs(
        states[used], back, ids[tokens], temperature=temperature, entropy_gradient=entropy_gradient
    )
    empty = logprobs.new_zeros(tokens.shape)
    return Likelihoods(
        logprobs=empty.masked_scatter(tokens, logprobs),
        entropy=empty.masked_scatter(tokens, entropy[back]),
        values=values,
    )
