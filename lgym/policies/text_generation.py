"""Text generation for policies: sampling responses, and the log-probabilities of what was sampled."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from lgym.batch import PolicyOutput, ResponseBatch, pad_rows
from lgym.models.generation.decoding import GeneratedText, GenerationOutput, generate
from lgym.models.generation.sampling import SamplingParams
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import TokenIds, common_prefix_length
from lgym.policies.policy import LLMPolicy, Prompts, Rng
from lgym.rollout import Prompt, Response
from lgym.types import ConfigError


class TextPolicy(LLMPolicy):
    """A policy that writes up to so many tokens, until a stop token or a stop text."""

    generates_text = True

    def __init__(
        self,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        responses_per_forward: int = 256,
        kv_cache_tokens: int = 65_536,
        row_length: int = 64,
        share_prefixes: bool = True,
    ) -> None:
        """
        Args:
            max_new_tokens: the longest response, end-of-turn token included; what is longer is cut there.
            temperature: of the softmax over tokens, at rollout time and in training alike; evaluation also
                acts greedily.
            top_k: sample from the likeliest tokens only; 0 samples from all.
            top_p: sample from the smallest set of likeliest tokens with this much probability; 1 samples from
                all.
            stop: texts that end a response too; the agent does not see them.
            responses_per_forward: how many distinct responses, or beginnings of them, are generated together;
                bounds memory.
            kv_cache_tokens: of how many tokens, of responses each with its prompt behind the common prefix,
                keys and values are held during generation; bounds memory. A token of SmolLM2-135M takes 23 kB
                in bf16.
            row_length: tokens of a packed row. Longer rows share more and attend more; results are the same.
            share_prefixes: compute the common beginnings of prompts once. Off, every sequence is run whole:
                for comparison.
        """
        super().__init__(row_length, share_prefixes)
        if isinstance(stop, str) or not all(stop):
            raise ConfigError(f"stop is {stop!r}; it must be a list of texts, none of them empty.")
        counts = {
            "max_new_tokens": max_new_tokens,
            "responses_per_forward": responses_per_forward,
            "kv_cache_tokens": kv_cache_tokens,
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"{name} is {count}; it must be 1 or more.")
        if temperature <= 0:
            raise ConfigError(
                f"temperature is {temperature}; it must be above 0. Evaluation has a greedy mode of its own."
            )
        self.max_text_tokens = self.max_new_tokens = max_new_tokens
        self.sampling = SamplingParams(temperature, top_k, top_p)
        try:
            self.sampling.probabilities(torch.zeros(1, 2))  # refuses limits that leave nothing
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self.stop = tuple(stop)
        self.responses_per_forward = responses_per_forward
        self.kv_cache_tokens = kv_cache_tokens

    @torch.no_grad()
    def act(
        self, prompts: Prompts, rng: Rng, *, keep_kv_cache: bool = True, bootstrap: Prompts = ()
    ) -> tuple[list[Response], Tensor]:
        """See `LLMPolicy`; equal prompts get responses of their own."""
        generator = make_generator(self.llm, rng)
        responses: dict[int, Response] = {}
        values: dict[int, Tensor] = {}
        kv_caches = []
        for chunk in self._chunks(prompts):
            chunk_prompts = [prompts[i] for i in chunk]
            output = generate(
                self.llm,
                [prompt.token_ids for prompt in chunk_prompts],
                max_new_tokens=self.max_text_tokens,
                stop_ids=stop_ids(self.llm),
                sampling_params=self.sampling,
                generator=generator,
                kv_caches=self.llm.kv_caches,
                stop_check=self._stopped if self.stop else None,
                row_length=self.row_length,
                max_num_seqs=self.responses_per_forward,
                keep_kv_cache=keep_kv_cache or self.scores_candidates,  # which is done behind the text
            )
            texts = [Response(*text, self._words(text)) for text in output.responses]
            responses.update(
                zip(chunk, self._responses(chunk_prompts, output, texts, generator), strict=True)
            )
            values.update(zip(chunk, self.llm.values(output.prompt_states).cpu(), strict=True))
            kv_caches += [output.kv_cache] if keep_kv_cache else []
        self.llm.store_kv(kv_caches)
        order = range(len(prompts))
        return [responses[i] for i in order], torch.stack([values[i] for i in order])

    def _responses(
        self,
        prompts: Prompts,
        output: GenerationOutput,
        texts: Sequence[Response],
        generator: torch.Generator | None,
    ) -> list[Response]:
        """The response to each of some prompts that were answered together, made of the distinct texts of the
        output; the generator is the source of further sampling."""
        return [texts[row] for row in output.response_index]

    def evaluate_actions(self, batch: ResponseBatch, *, entropy_gradient: bool = False) -> PolicyOutput:
        """See `LLMPolicy`; each distinct response to a prompt is computed once."""
        distinct, rows = batch.distinct()
        return self._evaluate_distinct(distinct, entropy_gradient=entropy_gradient).index(rows)

    @abstractmethod
    def _evaluate_distinct(self, batch: ResponseBatch, *, entropy_gradient: bool) -> PolicyOutput:
        """`evaluate_actions` of responses that all differ."""

    def _chunks(self, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
        """Positions of the prompts that are answered together: at most `responses_per_forward` distinct ones,
        and as many as `kv_cache_tokens` hold with their responses, behind the common prefix; or one. Each
        response to a prompt takes a copy of it."""
        positions: dict[Prompt, list[int]] = {}
        for position, prompt in enumerate(prompts):
            positions.setdefault(prompt, []).append(position)
        shared = common_prefix_length([prompt.token_ids for prompt in positions])
        chunk: list[int] = []
        distinct, tokens = 0, 0
        for prompt, same in positions.items():
            size = len(same) * (len(prompt.token_ids) - shared + self.max_text_tokens)
            if chunk and (distinct == self.responses_per_forward or tokens + size > self.kv_cache_tokens):
                yield chunk
                chunk, distinct, tokens = [], 0, 0
            chunk, distinct, tokens = chunk + same, distinct + 1, tokens + size
        yield chunk

    def _words(self, generated: GeneratedText) -> str:
        """The words of a text, without a stop token or text."""
        token_ids = self._without_stop(generated.token_ids)
        text = self.llm.tokenizer.decode(token_ids, skip_special_tokens=True)
        return self._before_stop(text) if generated.finished else text

    def _without_stop(self, token_ids: TokenIds) -> TokenIds:
        """All but a token that ends the turn."""
        return token_ids[:-1] if token_ids and token_ids[-1] in stop_ids(self.llm) else token_ids

    def _before_stop(self, text: str) -> str:
        return text[: min((at for stop in self.stop if (at := text.find(stop)) >= 0), default=len(text))]

    def _stopped(self, responses: Sequence[TokenIds]) -> list[bool]:
        """Check which responses, by their tokens so far, have come to a stop text."""
        most = max(len(stop.encode()) for stop in self.stop) + 4  # a token is a byte or more
        tails = [ids[-most:] for ids in responses]
        texts = self.llm.tokenizer.batch_decode(tails, skip_special_tokens=True)
        return [any(stop in text for stop in self.stop) for text in texts]


def stop_ids(llm: ValueHeadLLM) -> frozenset[int]:
    """The tokens that end a response: the tokenizer's end of sequence, and those of the model's generation
    settings."""
    ends = llm.causal_lm.generation_config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else ends
    return frozenset({*ends, llm.tokenizer.eos_token_id} - {None})


def make_generator(llm: ValueHeadLLM, rng: np.random.Generator | None) -> torch.Generator | None:
    """torch's generator for sampling, seeded from NumPy's: on a GPU the GPU's own, so that nothing waits for
    the CPU."""
    if rng is None:
        return None
    device = "cuda" if llm.device.type == "cuda" else "cpu"
    return torch.Generator(device).manual_seed(int(rng.integers(2**62)))


def token_output(
    policy: TextPolicy,
    batch: ResponseBatch,
    states: Tensor,
    positions: Sequence[Sequence[int]],
    *,
    sampled: Tensor,
    entropy_gradient: bool,
) -> PolicyOutput:
    """Log-probabilities, entropies and values of tokens that were sampled from the whole vocabulary.

    Args:
        policy: whose model, temperature and values they are.
        batch: B responses.
        states: [K, H] hidden states.
        positions: for each response, the rows of `states` from the end of its prompt on.
        sampled: [B, T] bool, 1 for the tokens to look at; the others are 0 in the output.
        entropy_gradient: whether entropies have a gradient.
    """
    llm = policy.llm
    width = sampled.shape[1]
    index = pad_rows(positions)[:, :width].to(states.device)
    token_ids = pad_rows(batch.response_ids)[:, :width].to(states.device)
    values = llm.values(states.detach() if policy.detach_value else states)[index]
    used, back = index[sampled].unique(return_inverse=True)  # each distinct state once
    logprobs, entropy = llm.lm_head.token_logprobs(
        states[used],
        back,
        token_ids[sampled],
        temperature=policy.sampling.temperature,
        entropy_gradient=entropy_gradient,
    )
    empty = logprobs.new_zeros(sampled.shape)
    return PolicyOutput(
        logprobs=empty.masked_scatter(sampled, logprobs),
        entropy=empty.masked_scatter(sampled, entropy[back]),
        values=values,
    )
