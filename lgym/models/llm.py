"""The language model as lgym uses it: hidden states at chosen tokens, logits for chosen tokens, a state value."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from lgym.models.float32 import keep_dtypes
from lgym.models.fused_logprobs import fused_log_normalisers, fused_token_logprobs, plain_token_logprobs
from lgym.models.limits import context_length
from lgym.models.packing import PackedRows, Path, common_prefix_length, pack
from lgym.models.tree_attention import Layout, Tree
from lgym.models.value_head import ValueHead
from lgym.types import ConfigError

SHORTEST_SHARED_PREFIX = 4
"""A shorter prefix is not worth a forward pass of its own."""


class ValueHeadLLM(nn.Module):
    """A causal language model with a value head.

    `hidden_states` computes what sequences share once, with gradient, in the best layout that the model can do: `tree`, the
    common prefix and every packed row in one row of tokens, with an attention of our own; `rows`, the prefix in one row, of
    which every packed row takes the keys and values; `whole`, every sequence by itself.

    Precision is settled when the model is built: moving it changes the device, never the dtype, so that Lightning's
    `bf16-true` rounds neither adapters nor rotary frequencies.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any, *, name: str, value_hidden_size: int | None, use_cache: bool = True
    ) -> None:
        """
        Args:
            model: a causal model of transformers, with or without peft adapters; and its `tokenizer`.
            name: what the user calls it.
            value_hidden_size: width of the value head; `None` for a model without one, whose values are NaN.
            use_cache: whether a common prefix may be run by itself and its keys and values kept.
        """
        super().__init__()
        self.model: Any = model
        self.tokenizer = tokenizer
        self.name = name
        hidden_size = model.config.get_text_config().hidden_size
        self.value_head = None if value_hidden_size is None else ValueHead(hidden_size, value_hidden_size)
        self.value_scale = 1.0  # rewards, by what the value head gives
        self.share = True
        self.layout: Literal["tree", "rows", "whole"] = "rows"
        self.use_cache = use_cache
        self.tokens_computed = 0
        self.places_computed = 0
        self._remembers = False
        self._remembered: tuple[Path, Any] = ((), None)  # a prefix, its keys and values
        self.pasts: list[Any] = []  # of the conversations that were spoken in last, while the weights are fixed

    @property
    def causal_lm(self) -> Any:
        """The transformers model, out of any adapter wrapping."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def context_length(self) -> int:
        """The longest sequence that the model can take, in tokens."""
        return context_length(self.causal_lm.config.get_text_config())

    @property
    def device(self) -> torch.device:
        return self.causal_lm.get_input_embeddings().weight.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ValueHeadLLM:
        super()._apply(keep_dtypes(fn), recurse)
        return self

    def train(self, mode: bool = True) -> ValueHeadLLM:
        """As of any module, but for 8-bit layers: a CPU multiplies otherwise while they train, as another policy would."""
        super().train(mode)
        for module in self.modules():
            module.training |= type(module).__name__ == "Linear8bitLt"
        return self

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within, the model is the one that training started from: the adapters are switched off.

        Raises:
            ValueError: if there are no adapters, so that the starting weights are no longer there.
        """
        if not hasattr(self.model, "disable_adapter"):
            raise ConfigError("A frozen reference needs adapters (`lora: {}`): with every weight trained, it is gone.")
        remembers, self._remembers = self._remembers, False
        try:
            with self.model.disable_adapter():
                yield
        finally:
            self._remembers = remembers

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Within, the weights do not change: a prefix and conversations are kept from call to call, within another too."""
        outermost, self._remembers = not self._remembers, True
        try:
            yield
        finally:
            if outermost:
                self._remembers, self._remembered, self.pasts = False, ((), None), []

    def keep(self, pasts: Sequence[Any]) -> None:
        """Takes the `Past` of each conversation that may go on in place of those kept before; nothing unless `fixed`."""
        self.pasts = [past for past in pasts if past is not None] if self._remembers else []

    def hidden_states(
        self, sequences: Sequence[Path], prompt_lengths: Sequence[int], *, row_length: int
    ) -> tuple[Tensor, list[list[int]]]:
        """Final hidden states of each sequence from the last token of its prompt on, each distinct one once.

        Args:
            sequences: token ids, each a prompt followed by zero or more tokens.
            prompt_lengths: tokens of each prompt, at least 1.
            row_length: places of a packed row.

        Returns:
            [K, H] distinct hidden states, and for each sequence the T - prompt_length + 1 rows that are its own.
        """
        prefix, packed = self.share_out(sequences, prompt_lengths, row_length=row_length)
        if not self._shares:
            hidden = self._run_whole(packed)
        elif self.layout == "tree":
            hidden = self.run_tree(prefix, packed)
        else:
            hidden = self._run_rows(prefix, packed)
        starts = [length - 1 - len(prefix) for length in prompt_lengths]
        wanted = [places[start:] for places, start in zip(packed.places, starts, strict=True)]
        distinct = {place: k for k, place in enumerate(dict.fromkeys(place for places in wanted for place in places))}
        states = hidden[torch.tensor(list(distinct), device=self.device)]
        return states, [[distinct[place] for place in places] for places in wanted]

    @property
    def _shares(self) -> bool:
        return self.share and self.layout != "whole"

    def share_out(
        self, sequences: Sequence[Path], prompt_lengths: Sequence[int], *, row_length: int
    ) -> tuple[Path, PackedRows]:
        """The prefix that all sequences have in common, and their rests, packed."""
        prefix = sequences[0][: self._prefix_length(sequences, prompt_lengths)] if self._shares else ()
        rests = [tuple(sequence[len(prefix) :]) for sequence in sequences]
        packed = pack(rests, row_length=row_length, share=self._shares, trunks=self.layout == "tree")
        self.tokens_computed += packed.real_tokens
        return prefix, packed

    def _prefix_length(self, sequences: Sequence[Path], prompt_lengths: Sequence[int]) -> int:
        """Tokens to run once for all rows; each prompt keeps at least its last token in its own row."""
        known = self._remembered[0] if self._remembers else ()
        if known and len(known) < min(prompt_lengths) and all(sequence[: len(known)] == known for sequence in sequences):
            return len(known)
        if self.layout == "rows" and not self.use_cache:
            return 0
        shared = min(common_prefix_length(sequences), min(prompt_lengths) - 1) if len(sequences) > 1 else 0
        return shared if shared >= SHORTEST_SHARED_PREFIX else 0

    def _prefix_cache(self, prefix: Path) -> Any:
        """Keys and values of a prefix in one row."""
        if self._remembers and prefix == self._remembered[0]:
            return copy.deepcopy(self._remembered[1])  # running rows behind it appends to it
        cache = DynamicCache(config=self.causal_lm.config)
        ids = torch.tensor([prefix], device=self.device)
        self.causal_lm.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
        self.count(len(prefix))
        if self._remembers and not torch.is_grad_enabled():
            self._remembered = prefix, copy.deepcopy(cache)
        return cache

    def count(self, tokens: int) -> None:
        """Keeps account of tokens computed without padding."""
        self.tokens_computed, self.places_computed = self.tokens_computed + tokens, self.places_computed + tokens

    def run_tree(self, prefix: Path, packed: PackedRows, within: Callable[[Tree], Layout] = lambda tree: tree) -> Tensor:
        """[N, H] hidden states of packed rows behind their prefix, which is run in the same pass, or while the weights are
        fixed, once and kept. `within` puts the tree into a layout of the caller's."""
        keep = self._remembers and self.use_cache and not torch.is_grad_enabled()
        cache = self._prefix_cache(prefix) if prefix and keep else None
        ids, positions = packed.token_ids, packed.depths + len(prefix)
        if prefix and cache is None:
            ids = torch.cat([torch.tensor(prefix), ids])
            positions = torch.cat([torch.arange(len(prefix)), positions])
            self.count(len(prefix))
        tree = Tree.over(packed, len(prefix), self.device)
        self.places_computed += sum(len(tile.tokens) for tile in tree.tiles)
        hidden = self._run_row(ids.to(self.device), positions.to(self.device), within(tree), cache)
        return hidden[len(hidden) - packed.real_tokens :]

    def run_next(self, token_ids: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """[n, H] hidden states of n tokens, each of which goes on where the layout says."""
        self.count(len(token_ids))
        return self._run_row(token_ids, positions, layout, None)

    def _run_row(self, token_ids: Tensor, positions: Tensor, layout: Layout, cache: Any) -> Tensor:
        """[n, H] hidden states of one row of n tokens."""
        body: Any = self.causal_lm.base_model
        return body(
            input_ids=token_ids[None],
            position_ids=positions[None],
            attention_mask=torch.zeros((1, 1, 1, 1), device=self.device),  # ready made, so none is made from positions
            past_key_values=cache,
            use_cache=cache is not None,
            layout=layout,
        ).last_hidden_state[0]

    def _run_rows(self, prefix: Path, packed: PackedRows) -> Tensor:
        """[N, H] hidden states of packed rows behind their prefix, whose keys and values every row gets a copy of."""
        rows, length = packed.filled.shape
        self.places_computed += rows * length
        body: Any = self.causal_lm.base_model
        cache = self._prefix_cache(prefix) if prefix else None
        if cache is not None:
            cache.batch_repeat_interleave(rows)
        dtype = body.get_input_embeddings().weight.dtype
        mask = torch.zeros((rows, 1, length, len(prefix) + length), dtype=dtype, device=self.device)
        mask[..., len(prefix) :].masked_fill_(~packed.padded_attends().to(self.device).unsqueeze(1), torch.finfo(dtype).min)
        hidden = body(
            input_ids=packed.padded(packed.token_ids).to(self.device),
            position_ids=packed.padded(packed.depths).to(self.device) + len(prefix),
            attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state
        return hidden[packed.filled.to(self.device)]

    def _run_whole(self, packed: PackedRows) -> Tensor:
        """[N, H] hidden states where every row is one sequence, padded on the right: any causal model does that."""
        mask = packed.filled.to(self.device)
        self.places_computed += mask.numel()
        body: Any = self.causal_lm.base_model
        hidden = body(
            input_ids=packed.padded(packed.token_ids).to(self.device), attention_mask=mask.long()
        ).last_hidden_state
        return hidden[mask]

    def values(self, hidden: Tensor) -> Tensor:
        """[..., H] hidden states at the ends of prompts to [...] state values, in rewards; NaN without a value head."""
        if self.value_head is None:
            return torch.full(hidden.shape[:-1], torch.nan, device=hidden.device)
        return self.value_head(hidden) * self.value_scale

    def chosen_logits(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """Logits of a few tokens each: [B, H] and [B, K] to [B, K], at least fp32, without the vocabulary's other rows."""
        head = self.causal_lm.get_output_embeddings()
        weight = head.weight[token_ids]  # [B, K, H]
        precise = torch.promote_types(hidden.dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            logits = torch.einsum("bh,bkh->bk", hidden.to(precise), weight.to(precise))
        if getattr(head, "bias", None) is not None:
            logits = logits + head.bias[token_ids].to(precise)
        return self._cap(logits)

    def log_normalisers(self, hidden: Tensor) -> Tensor:
        """[B, H] to [B]: the log of the softmax's denominator over the whole vocabulary, at least fp32."""
        if self._plain_head(hidden):
            return fused_log_normalisers(hidden, self.causal_lm.get_output_embeddings().weight)
        return self.logits(hidden).logsumexp(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] to [..., V], at least fp32."""
        logits = self.own_logits(hidden)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def token_logprobs(
        self, hidden: Tensor, owners: Tensor, tokens: Tensor, *, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [n] of tokens over the whole vocabulary, and entropies [K] of the states [K, H] that they were
        drawn behind: `owners` [n] are the states' numbers. Arguments as of `fused_token_logprobs`."""
        if self._plain_head(hidden):
            weight = self.causal_lm.get_output_embeddings().weight
            return fused_token_logprobs(hidden, weight, owners, tokens, temperature, entropy_gradient=entropy_gradient)
        return plain_token_logprobs(self.logits(hidden), owners, tokens, temperature, entropy_gradient=entropy_gradient)

    def _plain_head(self, hidden: Tensor) -> bool:
        """Whether logits are no more than hidden states times frozen weights."""
        head = self.causal_lm.get_output_embeddings()
        plain = not head.weight.requires_grad and getattr(head, "bias", None) is None and type(head) is nn.Linear
        return plain and self._softcap is None and not torch.is_autocast_enabled(hidden.device.type)

    def own_logits(self, hidden: Tensor) -> Tensor:
        """[..., H] to [..., V], in the model's precision."""
        return self._cap(self.causal_lm.get_output_embeddings()(hidden))

    def _cap(self, logits: Tensor) -> Tensor:
        """Gemma's soft cap on the logits (2024, arXiv:2408.00118, section 2), where the model has one."""
        cap = self._softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    @property
    def _softcap(self) -> float | None:
        return getattr(self.causal_lm.config.get_text_config(), "final_logit_softcapping", None)
