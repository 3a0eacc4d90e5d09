"""The generation policy: the language model answers in free text, and the agent reads an action out of it.

pi(reply | prompt) = product over its tokens of  softmax(logits / temperature)[token]

By default nothing is cut off, so that replies are drawn from the very distribution that the loss trains. With `top_k` or
`top_p` the recorded log-probabilities are those of what is left, and the loss sees a policy that differs from the one that
played from the first step on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lgym.batch import Context, Likelihoods, Reply, ReplyBatch
from lgym.models.drawing import Sampling
from lgym.models.llm import ValueHeadLLM
from lgym.plain_text import SpecialTokenEscaper
from lgym.policies.writing import Writer, make_generator, prompt_values, token_likelihoods
from lgym.types import ConfigError


class GenerationPolicy(nn.Module):
    """Free text, token by token."""

    llm: ValueHeadLLM
    speaks = True
    chooses = False

    def __init__(
        self,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        replies_per_forward: int = 256,
        kv_cache_tokens: int = 65_536,
        row_length: int = 64,
        share_prefixes: bool = True,
    ) -> None:
        """
        Args:
            max_new_tokens: the longest reply, end-of-turn token included; what is longer is cut there.
            temperature: of the softmax over tokens, in playing and in learning alike; evaluation also plays greedily.
            top_k: draw from the likeliest tokens only; 0 draws from all.
            top_p: draw from the smallest set of likeliest tokens with this much probability; 1 draws from all.
            stop: texts that end a reply too; the agent does not see them.
            replies_per_forward: how many distinct replies, or beginnings of them, are written together; bounds memory.
            kv_cache_tokens: of how many tokens, of prompts behind what all share and of replies, keys and values are held
                while these are written; bounds memory. A token of SmolLM2-135M takes 23 kB in bf16.
            row_length: places of a packed row. Longer rows share more and attend more; results are the same.
            share_prefixes: compute what prompts have in common once. Off, every sequence is run whole: for comparison.
        """
        super().__init__()
        sampling = Sampling(temperature, top_k, top_p)
        self.writer = Writer(max_new_tokens, sampling, as_texts(stop), row_length, replies_per_forward, kv_cache_tokens)
        self.share_prefixes = share_prefixes
        self.kv_cache_tokens = kv_cache_tokens
        self.detach_value = False

    @property
    def max_new_tokens(self) -> int:
        return self.writer.limit

    @property
    def has_critic(self) -> bool:
        """Whether its model has a value head."""
        return self.llm.value_head is not None

    def bind(self, llm: ValueHeadLLM) -> None:
        """Gives the policy its model; called once, when the model is built."""
        llm.share = self.share_prefixes
        self.llm, self._escaper = llm, SpecialTokenEscaper(llm.tokenizer)

    @torch.no_grad()
    def reply(self, contexts: Sequence[Context], seed: int | None, *, going_on: bool = True) -> tuple[list[Reply], Tensor]:
        """One reply to each context, and its state value [len(contexts)]; without a seed the likeliest tokens. `going_on`
        keeps keys and values for later contexts that go on from these."""
        generator = make_generator(self.llm, seed)
        replies: dict[int, Reply] = {}
        values: dict[int, Tensor] = {}
        pasts = []
        for part in self.writer.parts(contexts):
            written = self.writer.write(self.llm, [contexts[i].prompt_ids for i in part], generator, keep=going_on)
            replies |= {i: written.replies[row] for i, row in zip(part, written.rows, strict=True)}
            values |= zip(part, self.llm.values(written.ends).cpu(), strict=True)
            pasts.append(written.past)
        self.llm.keep(pasts)
        order = range(len(contexts))
        return [replies[i] for i in order], torch.stack([values[i] for i in order])

    def demonstrated(self, context: Context, text: str, ids: tuple[int, ...], choice: int) -> Reply:
        """A reply that is to be imitated: this text and the token that ends a turn, or the tokens that were sampled."""
        if not ids:
            plain = self._escaper
            ids = (*plain.encode(plain.escape(text, plain.markup_ids)), self.llm.tokenizer.eos_token_id)
        return Reply(ids, (0.0,) * len(ids), True, text)

    @torch.no_grad()
    def values(self, contexts: Sequence[Context]) -> Tensor:
        """[U] state values."""
        return prompt_values(self.llm, contexts, self.writer.row_length)

    def likelihoods(self, batch: ReplyBatch, *, entropy_gradient: bool = False) -> Likelihoods:
        """Of the tokens of each reply, differentiable."""
        prompts = [batch.contexts[row].prompt_ids for row in batch.rows.tolist()]
        sequences = [prompt + reply[:-1] for prompt, reply in zip(prompts, batch.replies, strict=True)]
        states, places = self.llm.hidden_states(sequences, [len(p) for p in prompts], row_length=self.writer.row_length)
        return token_likelihoods(
            self.llm,
            batch,
            states,
            places,
            temperature=self.writer.sampling.temperature,
            detach_value=self.detach_value,
            tokens=batch.mask,
            entropy_gradient=entropy_gradient,
        )


def as_texts(stop: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stop, str):
        raise ConfigError(f"stop is the text {stop!r}; it must be a list of texts.")
    return tuple(stop)
