"""Configuration of the language model; the `model:` section of a YAML file."""

from dataclasses import dataclass, field, replace
from typing import Literal

from lgym.types import ConfigError

FEWEST_BLOCKS = 6
"""Blocks that get adapters at the least, where their number is not given."""


@dataclass
class LoraSettings:
    """Low-rank adapters (LoRA) on a frozen model (Hu et al. 2021, arXiv:2106.09685).

    Args:
        r: rank of the adapters; null takes the registry's.
        alpha: the adapters' output is scaled by alpha / r; null takes twice the rank.
        dropout: dropout on the adapters' input. Above 0 the trained policy is no longer the behavior policy.
        target_modules: names of the layers that get adapters; null takes the registry's, "all-linear" every
            linear layer.
        last_blocks: number of the model's last blocks that get adapters, at most all of them; null gives them
            to all. An update's backward pass ends at the first of these blocks, and what comes out of those
            below is computed once a run. `auto` is a third of the blocks, 6 or more, for a policy that
            chooses among candidates, and all for one that writes text of its own.
    """

    r: int | None = None
    alpha: int | None = None
    dropout: float = 0.0
    target_modules: list[str] | str | None = None
    last_blocks: int | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        if self.r is not None and self.r < 1:
            raise ConfigError(
                f"lora.r is {self.r}; it must be 1 or more (or set `lora: null` to train every weight)."
            )
        if isinstance(self.last_blocks, int) and self.last_blocks < 1:
            raise ConfigError(
                f"lora.last_blocks is {self.last_blocks}; it must be 1 or more (or null for all of them)."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"lora.dropout is {self.dropout}; it must be at least 0 and below 1.")

    def blocks_of(self, count: int) -> int | None:
        """Number of the last blocks, of so many, that get adapters; None for all."""
        if self.last_blocks != "auto":
            return self.last_blocks
        if isinstance(self.target_modules, str) and self.target_modules != "all-linear":
            return None  # a pattern says which blocks
        return min(count, max(FEWEST_BLOCKS, -(-count // 3)))


@dataclass
class LLMConfig:
    """A language model, and the way that it is made trainable.

    Args:
        model: a registry name (such as smollm2-135m-instruct), a folder, a GGUF file (which is converted
            once), or a model id of the Hugging Face Hub.
        lora: adapters on the frozen model; null trains every weight.
        adapter: an adapter to go on from: its folder, as `fit` exports it or peft writes it, or the name of
            an agent that comes with lgym. Its value head too, where one of the same width lies beside it.
            What is given of `lora` has to be what it has.
        quantization: quantize the frozen weights, for which the model needs adapters: int8 computes their
            products in whole numbers, faster than in bf16 and rounded to 1 % of a row's largest; 4bit and
            8bit save memory, with bitsandbytes.
        attn_implementation: attention code of transformers (eager or sdpa); null takes eager on the CPU,
            where it is faster for short rows, and sdpa elsewhere.
        gradient_checkpointing: recompute activations in the backward pass: less memory, about a third more
            time. Switches the cache of a common prefix off, since transformers has no KV cache while
            checkpointing.
        hidden_cache_mb: memory, in 10^6 bytes, for what comes out of the blocks below the first adapter
            (`lora.last_blocks`): a constant of each token in its place, computed once a run. 0 keeps nothing.
        value_hidden_size: width of the value head's hidden layer.
        trust_remote_code: run code that comes with the model. Leave it off unless you trust the author.
        revision: branch, tag or commit of the Hub repository; null is its main branch.
    """

    model: str = "smollm2-135m-instruct"
    lora: LoraSettings | None = field(default_factory=LoraSettings)
    adapter: str | None = None
    quantization: Literal["4bit", "8bit", "int8"] | None = None
    attn_implementation: str | None = None
    gradient_checkpointing: bool = False
    hidden_cache_mb: int = 256
    value_hidden_size: int = 256
    trust_remote_code: bool = False
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.adapter is not None and self.lora is None:
            raise ConfigError(
                f"llm.adapter is {self.adapter}, and `lora: null` trains every weight: leave one of them out."
            )
        if self.quantization is not None and self.lora is None:
            raise ConfigError(
                f"quantization: {self.quantization} needs adapters, since weights of so few bits cannot be "
                "trained. Set `lora: {}`, or `quantization: null` to train every weight."
            )
        if self.attn_implementation is not None and "flash" in self.attn_implementation:
            raise ConfigError(
                f"attn_implementation: {self.attn_implementation} takes no custom attention mask, which "
                "shared prefixes need. Use sdpa, or null."
            )
        if self.hidden_cache_mb < 0:
            raise ConfigError(
                f"hidden_cache_mb is {self.hidden_cache_mb}; it must be at least 0, which keeps nothing."
            )
        if self.value_hidden_size < 1:
            raise ConfigError(f"value_hidden_size is {self.value_hidden_size}; it must be 1 or more.")

    def for_text(self) -> "LLMConfig":
        """The same for a policy that writes text: adapters in all blocks, where their number is not given."""
        if self.lora is None or self.lora.last_blocks != "auto":
            return self
        return replace(self, lora=replace(self.lora, last_blocks=None))
