"""The base of every policy: a language model that acts, and that says how likely its responses are."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lgym.batch import PolicyOutput, ResponseBatch
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import TokenIds, split_micro_batches, tokens_per_forward
from lgym.rollout import Prompt, Response
from lgym.types import ConfigError

Prompts = Sequence[Prompt]
Rng = np.random.Generator | None


class LLMPolicy(nn.Module, ABC):
    """A policy made of a language model with a value head."""

    llm: ValueHeadLLM
    generates_text: bool
    scores_candidates: bool
    max_new_tokens: int
    """The longest response, in tokens; candidates are counted with the prompt."""

    def __init__(self, row_length: int, share_prefixes: bool) -> None:
        super().__init__()
        if row_length < 1:
            raise ConfigError(f"row_length is {row_length}; it must be 1 or more.")
        self.row_length = row_length
        self.share_prefixes = share_prefixes
        self.detach_value = False
        self.epsilon = 0.0  # share of the turns that take any candidate, each as likely

    def bind(self, llm: ValueHeadLLM) -> None:
        """Take the model, once it is built."""
        llm.share_prefixes = self.share_prefixes
        self.llm = llm

    @property
    def has_critic(self) -> bool:
        """True if the model has a value head."""
        return self.llm.value_head is not None

    @abstractmethod
    def act(
        self, prompts: Prompts, rng: Rng, *, keep_kv_cache: bool = True, bootstrap: Prompts = ()
    ) -> tuple[list[Response], Tensor]:
        """Answer each prompt, without gradient.

        Args:
            prompts: n prompts, equal ones among them or not.
            rng: the source of sampling; `None` takes the likeliest.
            keep_kv_cache: whether later prompts extend these, so that it pays to keep their keys and values.
            bootstrap: other prompts whose values will be asked for next.

        Returns:
            n responses, and [n] state values on the CPU.
        """

    @abstractmethod
    def evaluate_actions(self, batch: ResponseBatch, *, entropy_gradient: bool = False) -> PolicyOutput:
        """Log-probabilities, entropies and values of a batch's responses, differentiable.

        Args:
            batch: B turns on the model's device.
            entropy_gradient: whether entropies have a gradient.

        Returns:
            [B, T] tensors; exact divergences where the distributions are known.
        """

    @abstractmethod
    def demonstrated(self, prompt: Prompt, text: str, token_ids: tuple[int, ...], choice: int) -> Response:
        """A response to learn from as a demonstration.

        Args:
            prompt: what it answers.
            text: the demonstrated text.
            token_ids: its tokens, where it was sampled; else empty.
            choice: position of the candidate that it names, or -1.
        """

    def values(self, prompts: Sequence[Prompt]) -> Tensor:
        """[n] state values on the CPU, in passes of bounded size; NaN without a critic."""
        if not self.has_critic:
            return torch.full((len(prompts),), torch.nan)
        return self._at_prompt_ends(prompts, self.llm.values)

    def prompt_states(self, prompts: Sequence[Prompt]) -> Tensor:
        """[n, H] final hidden states at the ends of prompts, in fp32 on the CPU."""
        return self._at_prompt_ends(prompts, Tensor.float)

    @torch.no_grad()
    def _at_prompt_ends(self, prompts: Sequence[Prompt], read: Callable[[Tensor], Tensor]) -> Tensor:
        token_ids = [prompt.token_ids for prompt in prompts]
        order: list[int] = []
        values: list[Tensor] = []
        for chunk in split_micro_batches(token_ids, tokens_per_forward(self.llm.device)):
            sequences = [token_ids[i] for i in chunk]
            states, index = self.llm.hidden_states(
                sequences, list(map(len, sequences)), row_length=self.row_length
            )
            order += chunk
            values.append(read(states[[rows[0] for rows in index]]).cpu())
        return torch.cat(values)[torch.tensor(order).argsort()]

    def prefetch(self, prompts: Sequence[Prompt]) -> None:
        """Compute ahead what is known of prompts before they come up; of free text, nothing."""

    def _run_continuations(
        self, texts: Sequence[TokenIds], lengths: Sequence[int], continuations: Sequence[Sequence[TokenIds]]
    ) -> tuple[Tensor, list[list[list[int]]]]:
        """Run texts with each of their continuations, without a cache.

        Returns [K, H] hidden states, and for each text and each of its continuations their indices, from the
        text's last of `lengths` tokens on.
        """
        sequences = [text + ids for text, own in zip(texts, continuations, strict=True) for ids in own]
        starts = [length for length, own in zip(lengths, continuations, strict=True) for _ in own]
        states, index = self.llm.hidden_states(sequences, starts, row_length=self.row_length)
        positions = iter(index)
        return states, [[next(positions) for _ in own] for own in continuations]
