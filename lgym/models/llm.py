"""The language model: hidden states at chosen tokens, logits of chosen tokens, and state values."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from lgym.models.action_value_head import ActionHead, ActionValueHead
from lgym.models.fixed_precision import FixedPrecision
from lgym.models.lm_head import LMHead
from lgym.models.prefix_sharing.buckets import bucket_rows, score_limit
from lgym.models.prefix_sharing.frozen_blocks import FrozenBlocks
from lgym.models.prefix_sharing.packing import (
    PackedRows,
    TokenIds,
    common_prefix_length,
    pack,
    run_behind_prefix,
    run_padded,
)
from lgym.models.prefix_sharing.tree_attention import AttentionLayout, KVStates, TreeLayout
from lgym.models.value_head import ValueHead
from lgym.types import ConfigError

Layout = Literal["tree", "prefix_cache", "padded"]

NO_PREFIX: tuple[TokenIds, Any, bool] = ((), None, True)
MIN_PREFIX_LENGTH = 4  # a shorter common prefix is not worth its overhead


class ValueHeadLLM(FixedPrecision):
    """A causal language model with a value head.

    `hidden_states` computes shared tokens once, with gradient, in the best layout that the model takes:
    `tree` runs the common prefix and all packed rows as one row of tokens, with tree attention;
    `prefix_cache` runs the prefix by itself and gives every packed row its keys and values; `padded` runs
    every sequence by itself.

    Precision is fixed when the model is built: `bf16-true` rounds neither adapters nor rotary frequencies.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        name: str,
        value_hidden_size: int | None,
        use_cache: bool = True,
    ) -> None:
        """
        Args:
            model: a causal model of transformers, with or without peft adapters.
            tokenizer: its tokenizer.
            name: the user's name for it.
            value_hidden_size: width of the value head; None for no value head, which makes values NaN.
            use_cache: allow keeping the keys and values of a common prefix.
        """
        super().__init__()
        self.model: Any = model
        self.tokenizer = tokenizer
        self.name = name
        hidden_size = model.config.get_text_config().hidden_size
        self.value_head = (
            None if value_hidden_size is None else ValueHead(hidden_size, value_hidden_size).to(self.device)
        )
        self.action_value_head: ActionValueHead | None = None
        self.action_head: ActionHead | None = None
        self.share_prefixes = True
        self.layout: Layout = "prefix_cache"
        self.use_cache = use_cache
        self.tokens_computed = 0
        self.padded_tokens_computed = 0
        self.frozen_blocks: FrozenBlocks | None = None
        self.frozen_session: object | None = None  # another object each time that the weights are frozen
        # while weights are frozen: a prefix, its keys and values, and whether these are of all blocks
        self._cached_prefix: tuple[TokenIds, Any, bool] = NO_PREFIX
        self.kv_caches: list[Any] = []  # of conversations that may be continued

    @property
    def causal_lm(self) -> Any:
        """The transformers model without its adapter wrapping."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def context_length(self) -> int:
        """The longest sequence that the model takes, in tokens."""
        config = self.causal_lm.config.get_text_config()
        limits = [getattr(config, "max_position_embeddings", None)]
        if getattr(config, "use_sliding_window", True):  # packed rows attend without a window
            limits.append(getattr(config, "sliding_window", None))
        return min((int(limit) for limit in limits if limit), default=1 << 30)

    @property
    def lm_head(self) -> LMHead:
        """The head that gives logits over the vocabulary."""
        softcap = getattr(self.causal_lm.config.get_text_config(), "final_logit_softcapping", None)
        return LMHead(self.causal_lm.get_output_embeddings(), softcap)

    @property
    def device(self) -> torch.device:
        return self.causal_lm.get_input_embeddings().weight.device

    def train(self, mode: bool = True) -> "ValueHeadLLM":
        """Switches modes, but for 8-bit layers, which a CPU multiplies differently while they train, and for
        routers that would choose experts with noise then: another policy than the one that played."""
        super().train(mode)
        for module in self.modules():
            module.training |= type(module).__name__ == "Linear8bitLt"
            module.training &= not any("jitter" in name for name in vars(module))
        return self

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Context manager that switches adapters off, which gives the base model, also where training started
        from an adapter.

        Raises:
            ValueError: if there are no adapters, so that the base's weights are no longer there.
        """
        if not hasattr(self.model, "disable_adapter"):
            raise ConfigError(
                "A frozen reference needs adapters (`lora: {}`): with every weight trained, it is gone."
            )
        with self._new_session(None), self.model.disable_adapter():
            yield

    @contextmanager
    def frozen_weights(self) -> Iterator[None]:
        """Context manager for fixed weights: KV caches stay valid from call to call. It may nest."""
        with self._new_session(object()) if self.frozen_session is None else nullcontext():
            yield

    @contextmanager
    def _new_session(self, session: object | None) -> Iterator[None]:
        before = self.frozen_session, self._cached_prefix, self.kv_caches
        self.frozen_session = session
        self._cached_prefix = NO_PREFIX
        self.kv_caches = []
        try:
            yield
        finally:
            self.frozen_session, self._cached_prefix, self.kv_caches = before

    def store_kv(self, kv_caches: Sequence[Any]) -> None:
        """Replaces the stored `KVCache`s that prompts may continue; stores none unless weights are frozen."""
        self.kv_caches = (
            [cache for cache in kv_caches if cache is not None] if self.frozen_session is not None else []
        )

    def hidden_states(
        self, sequences: Sequence[TokenIds], prompt_lengths: Sequence[int], *, row_length: int
    ) -> tuple[Tensor, list[list[int]]]:
        """Final hidden states of each sequence from the last token of its prompt on, each distinct one once.

        Args:
            sequences: token ids, each a prompt followed by zero or more tokens.
            prompt_lengths: tokens of each prompt, at least 1.
            row_length: tokens of a packed row.

        Returns:
            [K, H] distinct hidden states, and for each sequence of T tokens the T - prompt_length + 1 indices
            of its own.
        """
        prefix, packed = self.pack_sequences(sequences, prompt_lengths, row_length=row_length)
        body = self.causal_lm.base_model
        if self._shares and self.layout == "tree":
            hidden = self.run_tree(prefix, packed)
        else:
            self.padded_tokens_computed += packed.token_mask.numel()
            cache = self._prefix_cache(prefix) if prefix else None
            hidden = (
                run_behind_prefix(body, packed, len(prefix), cache)
                if self._shares
                else run_padded(body, packed)
            )
        wanted = [
            index[length - 1 - len(prefix) :]
            for index, length in zip(packed.token_index, prompt_lengths, strict=True)
        ]
        distinct = {token: k for k, token in enumerate(dict.fromkeys(chain.from_iterable(wanted)))}
        states = hidden[torch.tensor(list(distinct), device=self.device)]
        return states, [[distinct[token] for token in index] for index in wanted]

    @property
    def _shares(self) -> bool:
        return self.share_prefixes and self.layout != "padded"

    def pack_sequences(
        self, sequences: Sequence[TokenIds], prompt_lengths: Sequence[int], *, row_length: int
    ) -> tuple[TokenIds, PackedRows]:
        """The prefix that all sequences have in common, and what follows it, packed."""
        prefix = sequences[0][: self._prefix_length(sequences, prompt_lengths)] if self._shares else ()
        packed = pack(
            [tuple(sequence[len(prefix) :]) for sequence in sequences],
            row_length=row_length,
            share_prefixes=self._shares,
            row_prefixes=self.layout == "tree",
        )
        self.tokens_computed += packed.num_tokens
        return prefix, packed

    def _prefix_length(self, sequences: Sequence[TokenIds], prompt_lengths: Sequence[int]) -> int:
        # each prompt keeps at least its last token in its own row
        cached = self._cached_prefix[0]
        length = len(cached)
        if cached and length < min(prompt_lengths) and all(s[:length] == cached for s in sequences):
            return length
        if self.layout == "prefix_cache" and not self.use_cache:
            return 0
        shared = min(common_prefix_length(sequences), min(prompt_lengths) - 1) if len(sequences) > 1 else 0
        return shared if shared >= MIN_PREFIX_LENGTH else 0

    def _prefix_cache(self, prefix: TokenIds, states: Tensor | None = None) -> Any:
        if prefix == self._cached_prefix[0] and (states is None) == self._cached_prefix[2]:
            return copy.deepcopy(self._cached_prefix[1])  # a forward pass behind it appends to it
        cache = DynamicCache(config=self.causal_lm.config)
        with self._above_frozen_blocks(None if states is None else states[: len(prefix)]):
            self.causal_lm.base_model(
                input_ids=torch.tensor([prefix], device=self.device), past_key_values=cache, use_cache=True
            )
        self.count_tokens(len(prefix))
        if self.frozen_session is not None and not torch.is_grad_enabled():
            self._cached_prefix = prefix, copy.deepcopy(cache), states is None
        return cache

    def _above_frozen_blocks(self, states: Tensor | None) -> AbstractContextManager[None]:
        if states is None or self.frozen_blocks is None:
            return nullcontext()
        return self.frozen_blocks.skipped(states)

    def count_tokens(self, count: int) -> None:
        """Adds tokens that were computed without padding to both counters."""
        self.tokens_computed += count
        self.padded_tokens_computed += count

    def run_tree(self, prefix: TokenIds, packed: PackedRows, recorded: KVStates | None = None) -> Tensor:
        """[N, H] hidden states of packed rows behind their prefix, in the layout `tree`.

        The prefix is run in the same pass or, while weights are frozen, once and cached. `recorded` gets the
        keys and values of all tokens.
        """
        states = None
        if self.frozen_blocks is not None and recorded is None:
            states = self.frozen_blocks.states(prefix, packed)
        use_cache = self.frozen_session is not None and self.use_cache and not torch.is_grad_enabled()
        cache = self._prefix_cache(prefix, states) if prefix and use_cache else None
        if states is not None and cache is not None:
            states = states[len(prefix) :]
        ids, positions = packed.token_ids, packed.positions + len(prefix)
        if prefix and cache is None:
            ids = torch.cat([torch.tensor(prefix), ids])
            positions = torch.cat([torch.arange(len(prefix)), positions])
            self.count_tokens(len(prefix))
        limit = score_limit(self.device, self.causal_lm.config.get_text_config())
        tree = TreeLayout(len(prefix), bucket_rows(packed, len(prefix), self.device, limit), recorded)
        self.padded_tokens_computed += sum(len(bucket.query_tokens) for bucket in tree.buckets)
        with self._above_frozen_blocks(states):
            hidden = self._run_row(ids.to(self.device), positions.to(self.device), tree, cache)
        return hidden[len(hidden) - packed.num_tokens :]

    def run_step(self, token_ids: Tensor, positions: Tensor, layout: AttentionLayout) -> Tensor:
        """[n, H] hidden states of n tokens that continue cached ones, as the layout says."""
        self.count_tokens(len(token_ids))
        return self._run_row(token_ids, positions, layout, None)

    def _run_row(self, token_ids: Tensor, positions: Tensor, layout: AttentionLayout, cache: Any) -> Tensor:
        body: Any = self.causal_lm.base_model
        return body(
            input_ids=token_ids[None],
            position_ids=positions[None],
            attention_mask=torch.zeros((1, 1, 1, 1), device=self.device),  # or transformers makes one
            past_key_values=cache,
            use_cache=cache is not None,
            layout=layout,
        ).last_hidden_state[0]

    @property
    def heads(self) -> list[ValueHead]:
        """The heads beside the model's own."""
        return [h for h in (self.value_head, self.action_value_head, self.action_head) if h is not None]

    def values(self, hidden: Tensor) -> Tensor:
        """State values [...] of hidden states [..., H] at the ends of prompts; NaN without a value head."""
        if self.value_head is None:
            return torch.full(hidden.shape[:-1], torch.nan, device=hidden.device)
        return self.value_head(hidden)
