"""Batched generation of responses, token by token.

The common prefix of prompts is run once, and cached tokens not again
(`lgym/models/prefix_sharing/prefill.py`). Two loops decode from there:

- On a CPU equal beginnings of responses to equal prompts are one row, which forks where the samples differ
  (as in vLLM's parallel sampling) and leaves when they are finished. A step costs one token per distinct
  beginning.
- On a GPU, which would wait for the CPU after each token, every response has a row of its own to the end.
  Shapes are static, and the step is one CUDA graph, if nothing within it waits for the GPU.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from lgym.models.generation.cuda_graph import capture_graph, is_sharded
from lgym.models.generation.sampling import Sampler, SamplingParams
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.kv_cache import DecodeStep, KVCache, concat_kv_caches
from lgym.models.prefix_sharing.packing import TokenIds
from lgym.models.prefix_sharing.prefill import prefill

STOP_CHECK_INTERVAL = 16  # tokens after which the loop with static shapes checks if all responses ended

StopCheck = Callable[[Sequence[TokenIds]], list[bool]]  # which responses, by their tokens so far, are over


class GeneratedText(NamedTuple):
    """A generated text in tokens, whole or so far."""

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    finished: bool  # ended by itself


@dataclass(frozen=True)
class GenerationOutput:
    """Responses to S prompts."""

    responses: list[GeneratedText]  # the distinct ones to each distinct prompt, without their text
    response_index: list[int]  # [S], the response to each prompt
    prompt_states: Tensor  # [S, H] hidden states at the last tokens of the prompts
    kv_cache: KVCache | None  # per response, its prompt and all but its last token; None without caching


@torch.no_grad()
def generate(
    llm: ValueHeadLLM,
    prompts: Sequence[TokenIds],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    sampling_params: SamplingParams,
    generator: torch.Generator | None,
    kv_caches: Sequence[KVCache] = (),
    stop_check: StopCheck | None = None,
    row_length: int = 64,
    max_num_seqs: int = 256,
    keep_kv_cache: bool = True,
    static_shapes: bool | None = None,
) -> GenerationOutput:
    """Generates a response to each prompt; equal prompts get samples of their own, which may be equal.

    Args:
        llm: the model.
        prompts: token ids, at least one each.
        max_new_tokens: tokens of the longest response, stop token included.
        stop_ids: tokens that end a response.
        sampling_params: the distribution of a token.
        generator: source of randomness; None takes the likeliest token each time.
        kv_caches: caches that prompts may continue.
        stop_check: called after every token, for responses that end otherwise.
        row_length: tokens of a packed row while prompts are run.
        max_num_seqs: distinct sequences that are decoded together; bounds memory.
        keep_kv_cache: return the KV cache of the responses.
        static_shapes: give every response a row to the end; None does so on CUDA, unless there is a
            `stop_check`.
    """
    distinct = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    row_index = torch.tensor([distinct[prompt] for prompt in prompts], device=llm.device)
    kv_cache, hidden = (
        prefill(llm, list(distinct), kv_caches, free_slots=max_new_tokens, row_length=row_length)
        if llm.layout == "tree"
        else (None, _last_states(llm, list(distinct), row_length))
    )
    sampler = Sampler(sampling_params, generator)
    stops = torch.tensor(sorted(stop_ids), device=llm.device)
    if static_shapes is None:
        static_shapes = llm.device.type == "cuda" and stop_check is None
    kept: list[KVCache] = []
    if static_shapes and kv_cache is not None:
        responses: list[GeneratedText] = []
        for rows in row_index.split(max_num_seqs):
            part = kv_cache.select(rows.tolist(), max_new_tokens)
            responses += _generate_static(llm, part, hidden[rows], max_new_tokens, stops, sampler)
            kept += [part] if keep_kv_cache else []
        response_index = list(range(len(responses)))
    else:
        batch = _Batch(
            prompts=list(distinct),
            responses=[GeneratedText((), (), False)] * len(distinct),
            sample_index=torch.arange(len(prompts), device=llm.device),
            row_index=row_index,
            kv_cache=kv_cache,
        )
        responses, response_index, kept = _generate_forking(
            llm,
            batch,
            hidden,
            max_new_tokens,
            stops,
            sampler,
            stop_check,
            max_num_seqs,
            keep_kv_cache,
            row_length,
        )
    return GenerationOutput(
        responses, response_index, hidden[row_index], concat_kv_caches(kept) if kept else None
    )


@dataclass(frozen=True)
class _Batch:
    """Unfinished responses; equal ones to equal prompts are one row of R."""

    prompts: list[TokenIds]  # R
    responses: list[GeneratedText]  # R
    sample_index: Tensor  # [n] the prompt of each sample
    row_index: Tensor  # [n] the row of each sample
    kv_cache: KVCache | None  # None in layouts without one, which run every sequence again from its start
    parents: Sequence[int] = ()  # R rows of the cache, to which their last tokens are to be appended
    owns_cache: bool = True  # no other batch continues from this cache later

    def select(self, rows: Tensor, *, owns_cache: bool) -> "_Batch":
        """A batch of some of the rows, which are sorted."""
        chosen = rows.tolist()
        mine = torch.isin(self.row_index, rows)
        return _Batch(
            prompts=[self.prompts[row] for row in chosen],
            responses=[self.responses[row] for row in chosen],
            sample_index=self.sample_index[mine],
            row_index=torch.searchsorted(rows, self.row_index[mine]),
            kv_cache=self.kv_cache,
            parents=[self.parents[row] for row in chosen],
            owns_cache=owns_cache,
        )


def _generate_forking(
    llm: ValueHeadLLM,
    batch: _Batch,
    hidden: Tensor,
    max_new_tokens: int,
    stop_ids: Tensor,
    sampler: Sampler,
    stop_check: StopCheck | None,
    max_num_seqs: int,
    keep_kv_cache: bool,
    row_length: int,
) -> tuple[list[GeneratedText], list[int], list[KVCache]]:
    """Returns responses, the response to each prompt, and KV caches. Responses fork where samples differ."""
    finished: list[GeneratedText] = []
    response_index = torch.empty_like(batch.sample_index)
    kept: list[KVCache] = []
    waiting: list[_Batch] = []
    while True:
        forks = _sample_forks(batch, llm.lm_head.raw_logits(hidden), sampler, stop_ids, stop_check)
        ended = [r.finished or len(r.token_ids) == max_new_tokens for r in forks.responses]
        leaving = torch.tensor(ended, device=forks.row_index.device)
        if any(ended):
            done = forks.select(leaving.nonzero().squeeze(1), owns_cache=False)
            response_index[done.sample_index] = len(finished) + done.row_index
            finished += done.responses
            if keep_kv_cache and done.kv_cache is not None:
                kept.append(done.kv_cache.select(done.parents, 0))
        for number, rows in enumerate((~leaving).nonzero().squeeze(1).split(max_num_seqs)):
            if len(rows):  # batches are taken from the end of the list, the first of these last
                waiting.append(forks.select(rows, owns_cache=number == 0))
        if not waiting:
            return finished, response_index.tolist(), kept
        batch = waiting.pop()  # depth first, so that few caches wait
        if batch.kv_cache is None:
            sequences = [p + r.token_ids for p, r in zip(batch.prompts, batch.responses, strict=True)]
            hidden = _last_states(llm, sequences, row_length)
        else:
            kv_cache = batch.kv_cache
            if not batch.owns_cache or batch.parents != list(range(kv_cache.num_rows)):
                kv_cache = kv_cache.select(batch.parents, max_new_tokens - len(batch.responses[0].token_ids))
            hidden = kv_cache.extend(llm, [r.token_ids[-1:] for r in batch.responses])
            batch = replace(batch, kv_cache=kv_cache)


def _last_states(llm: ValueHeadLLM, sequences: Sequence[TokenIds], row_length: int) -> Tensor:
    states, index = llm.hidden_states(sequences, [len(s) for s in sequences], row_length=row_length)
    return states[[indices[0] for indices in index]]


def _sample_forks(
    batch: _Batch, logits: Tensor, sampler: Sampler, stop_ids: Tensor, stop_check: StopCheck | None
) -> _Batch:
    """The batch with another token for every sample; a row per distinct response."""
    tokens, logprobs = sampler(logits, batch.row_index)
    numbers = (batch.row_index * logits.shape[1] + tokens).cpu()  # MPS has sorted large ones wrongly
    forks, fork_index = numbers.unique(return_inverse=True)
    last, logprobs = forks % logits.shape[1], logprobs.cpu()
    fork_logprobs = logprobs.new_empty(len(forks)).index_copy(0, fork_index, logprobs)  # equal within a fork
    parents: list[int] = (forks // logits.shape[1]).tolist()
    columns = parents, last.tolist(), fork_logprobs.tolist(), torch.isin(last, stop_ids.cpu()).tolist()
    responses = [
        GeneratedText(
            (*batch.responses[row].token_ids, token), (*batch.responses[row].logprobs, logprob), ended
        )
        for row, token, logprob, ended in zip(*columns, strict=True)
    ]
    if stop_check is not None:
        stopped = stop_check([response.token_ids for response in responses])
        responses = [
            r._replace(finished=r.finished or stop) for r, stop in zip(responses, stopped, strict=True)
        ]
    return _Batch(
        [batch.prompts[row] for row in parents],
        responses,
        batch.sample_index,
        fork_index.to(logits.device),
        batch.kv_cache,
        parents,
    )


def _generate_static(
    llm: ValueHeadLLM,
    kv_cache: KVCache,
    hidden: Tensor,
    max_new_tokens: int,
    stop_ids: Tensor,
    sampler: Sampler,
) -> list[GeneratedText]:
    """Decodes every row to the end, and cuts off what follows the end of a response."""
    rows = torch.arange(len(hidden), device=llm.device)
    cached = torch.tensor(kv_cache.lengths, device=llm.device)
    max_length = max(kv_cache.lengths) + max_new_tokens
    tokens, logprobs = sampler(llm.lm_head.raw_logits(hidden), rows)
    columns, logprob_columns = [tokens.clone()], [logprobs]

    def decode() -> Tensor:
        step = DecodeStep.from_cache(kv_cache, rows, cached, [1] * len(rows), max_length)
        return llm.run_step(tokens, step.positions + len(kv_cache.prefix_ids), step)

    # Run twice, a step writes the same keys to the same slots
    long = max_new_tokens > STOP_CHECK_INTERVAL // 2
    captured = llm.device.type == "cuda" and long and not is_sharded(llm)
    run = capture_graph(decode) if captured else decode
    for step in range(1, max_new_tokens):
        if step % STOP_CHECK_INTERVAL == 0 and torch.isin(torch.stack(columns), stop_ids).any(0).all():
            break
        states = run()
        cached += 1
        sampled, logprobs = sampler(llm.lm_head.raw_logits(states), rows)
        tokens.copy_(sampled)
        columns.append(sampled)
        logprob_columns.append(logprobs)
        if captured:
            llm.count_tokens(len(rows))
    token_ids = torch.stack(columns, dim=1)
    stopped = torch.isin(token_ids, stop_ids)
    finished = stopped.any(1)
    lengths = torch.where(finished, stopped.int().argmax(1) + 1, token_ids.shape[1])
    all_logprobs = torch.stack(logprob_columns, dim=1).float().tolist()
    results = token_ids.tolist(), all_logprobs, lengths.tolist(), finished.tolist()
    responses = [
        GeneratedText(tuple(ids[:n]), tuple(p[:n]), end) for ids, p, n, end in zip(*results, strict=True)
    ]
    kv_cache.suffix_ids = [
        ids + r.token_ids[:-1] for ids, r in zip(kv_cache.suffix_ids, responses, strict=True)
    ]
    return responses
