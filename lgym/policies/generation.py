"""The generation policy: the language model answers in free text, and the agent reads an action out of it.

pi(reply | prompt) = product over its tokens of  softmax(logits / temperature)[token]

By default nothing is cut off, so that replies are drawn from the very distribution that the loss trains. With `top_k` or
`top_p` the recorded log-probabilities are those of what is left, and the loss sees a policy that differs from the one that
played from the first step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from lgym.batch import Context, Reply
from lgym.models.decoding import Sampling, write_replies
from lgym.models.llm import ValueHeadLLM


class GenerationPolicy(nn.Module):
    """Free text, token by token."""

    llm: ValueHeadLLM
    speaks = True

    def __init__(
        self,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        replies_per_forward: int = 256,
        row_length: int = 64,
        share_prefixes: bool = True,
    ) -> None:
        """
        Args:
            max_new_tokens: the longest reply, end-of-turn token included; what is longer is cut there.
            temperature: of the softmax over tokens, in playing and in learning alike; evaluation also plays greedily.
            top_k: draw from the likeliest tokens only; 0 draws from all.
            top_p: draw from the smallest set of likeliest tokens with this much probability; 1 draws from all.
            replies_per_forward: how many replies are written together; bounds memory.
            row_length: places of a packed row. Longer rows share more and attend more; results are the same.
            share_prefixes: compute what prompts have in common once. Off, every sequence is run whole: for comparison.
        """
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; it must be above 0. Evaluation has a greedy mode of its own.")
        for name, value in (("max_new_tokens", max_new_tokens), ("replies_per_forward", replies_per_forward)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more.")
        self.max_new_tokens = max_new_tokens
        self.sampling = Sampling(temperature, top_k, top_p)
        self.sampling.logprobs(torch.zeros(1, 2))  # refuses limits that leave nothing
        self.replies_per_forward = replies_per_forward
        self.row_length = row_length
        self.share_prefixes = share_prefixes

    def bind(self, llm: ValueHeadLLM) -> None:
        """Gives the policy its model; called once, when the model is built."""
        llm.share = self.share_prefixes
        self.llm = llm

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a reply: the tokenizer's end of sequence, and those of the model's generation settings."""
        ends = self.llm.causal_lm.generation_config.eos_token_id
        ends = [] if ends is None else [ends] if isinstance(ends, int) else ends
        return frozenset({*ends, self.llm.tokenizer.eos_token_id} - {None})

    @torch.no_grad()
    def reply(self, contexts: Sequence[Context], seed: int | None) -> tuple[list[Reply], Tensor]:
        """One reply to each context, and its state value [len(contexts)]; without a seed the likeliest tokens."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        stop_ids, tokenizer = self.stop_ids, self.llm.tokenizer
        replies: list[Reply] = []
        values = []
        for start in range(0, len(contexts), self.replies_per_forward):
            prompts = [context.prompt_ids for context in contexts[start : start + self.replies_per_forward]]
            written, ends = write_replies(
                self.llm,
                prompts,
                max_new_tokens=self.max_new_tokens,
                stop_ids=stop_ids,
                sampling=self.sampling,
                generator=generator,
                row_length=self.row_length,
            )
            said = [reply.ids[:-1] if reply.ended else reply.ids for reply in written]
            texts = tokenizer.batch_decode([list(ids) for ids in said], skip_special_tokens=True)
            replies += [replace(reply, text=text) for reply, text in zip(written, texts, strict=True)]
            values.append(self.llm.values(ends).cpu())
        return replies, torch.cat(values)

    @torch.no_grad()
    def values(self, contexts: Sequence[Context]) -> Tensor:
        """[U] state values."""
        values = []
        for start in range(0, len(contexts), self.replies_per_forward):
            prompts = [context.prompt_ids for context in contexts[start : start + self.replies_per_forward]]
            states, index = self.llm.hidden_states(prompts, [len(p) for p in prompts], row_length=self.row_length)
            values.append(self.llm.values(states[[own[0] for own in index]]).cpu())
        return torch.cat(values)

    def forward(
        self, contexts: Sequence[Context], rows: Tensor, replies: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, T] of each reply's tokens, differentiable, and entropies [B, T] there; 0 behind its end.

        Args:
            contexts: distinct contexts.
            rows: [B] which of them each reply answers.
            replies: B replies' tokens.
        """
        prompts = [contexts[row].prompt_ids for row in rows.tolist()]
        sequences = [prompt + reply[:-1] for prompt, reply in zip(prompts, replies, strict=True)]
        states, index = self.llm.hidden_states(sequences, [len(p) for p in prompts], row_length=self.row_length)
        width = max(map(len, replies))
        places = torch.tensor([place for own in index for place in own], device=states.device)
        tokens = torch.tensor([token for reply in replies for token in reply], device=states.device)
        slots = torch.tensor(
            [b * width + t for b, reply in enumerate(replies) for t in range(len(reply))], device=states.device
        )
        logits = self.llm.logits(states)  # [K, V], of which every pass over it counts
        if self.sampling.temperature != 1:
            logits = logits / self.sampling.temperature
        normalisers = logits.logsumexp(-1)
        entropy = _entropy(logits.detach(), normalisers.detach())
        flat = logits.new_zeros(len(replies) * width)
        logprobs = flat.index_copy(0, slots, logits[places, tokens] - normalisers[places])
        return logprobs.view(-1, width), flat.index_copy(0, slots, entropy[places]).view(-1, width)


def _entropy(logits: Tensor, normalisers: Tensor) -> Tensor:
    """[K, V] logits and the logs [K] of their softmax's denominators to [K] entropies: log Z - E[logit]."""
    probabilities = (logits - normalisers[:, None]).exp_()
    return normalisers - torch.linalg.vecdot(probabilities, logits)
