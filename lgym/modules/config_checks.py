"""Checks of settings; each raises an error that names the value and the way out."""

import math
from typing import Any, get_args

from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from lgym.models import LLMConfig
from lgym.modules.fsdp2 import FSDP2Strategy
from lgym.types import ConfigError


def require_reference(kl_coef: float, llm: LLMConfig) -> None:
    """Refuse a divergence from the frozen reference where there is none."""
    if kl_coef > 0 and llm.lora is None:
        raise ConfigError(
            f"kl_coef is {kl_coef}, but with `lora: null` every weight is trained and no reference is left "
            "to stay near to. Set kl_coef: 0, or train adapters."
        )


def require_single_pass(passes: int, algorithm: str) -> None:
    """Refuse further passes over a rollout without clipping."""
    if passes > 1:
        raise ConfigError(
            f"{algorithm} without clipping learns from a rollout once, and data.update_epochs is {passes}: "
            "set it to 1, or set model.loss.clip_low and clip_high."
        )


def require_imitation_alone(epochs: int | None, rollouts: int) -> None:
    """Refuse a number of passes over demonstrations where no rollout trains on these alone."""
    if epochs is not None and rollouts == 0:
        raise ConfigError(
            f"sft.epochs is {epochs}, and no rollout trains on demonstrations alone: set sft.rollouts of the "
            "model, give data.demonstrations, or leave it out."
        )


def require_one_of(name: str, value: str, choices: Any) -> None:
    """Refuse a text that is not among those of a `Literal`: a program may give any."""
    if value not in get_args(choices):
        raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(get_args(choices))}.")


def require_weights(**values: float) -> None:
    """Refuse weights of a loss that are negative or not finite."""
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise ConfigError(f"{name} is {value}; it must be 0 or more.")


def require_positive(**values: float | None) -> None:
    """Refuse factors and limits that are not above 0, or not finite; `None` is no limit."""
    for name, value in values.items():
        if value is not None and not 0.0 < value < math.inf:
            raise ConfigError(f"{name} is {value}; it must be above 0.")


def require_counts(**values: int) -> None:
    """Refuse negative numbers of rollouts."""
    for name, value in values.items():
        if value < 0:
            raise ConfigError(f"{name} is {value}; it must be 0 or more rollouts.")


def require_clips(clip_low: float, clip_high: float) -> None:
    """Refuse bounds of the ratio that let nothing through."""
    if not 0.0 < clip_low < 1.0:
        raise ConfigError(f"clip_low is {clip_low}; it must lie between 0 and 1.")
    require_positive(clip_high=clip_high)


def require_discounts(**values: float | None) -> None:
    """Refuse discounts outside of 0 to 1; `None` is none."""
    for name, value in values.items():
        if value is not None and not 0.0 <= value <= 1.0:
            raise ConfigError(f"{name} is {value}; it must lie between 0 and 1.")


def require_strategy(strategy: Any, llm: LLMConfig) -> None:
    """Refuse strategies that cut up the weights and let processes wait for each other's passes for ever, but
    for `fsdp2`, which keeps them in lockstep."""
    if isinstance(strategy, FSDP2Strategy):
        strategy.require_shardable(llm)
    shards = isinstance(strategy, FSDPStrategy | ModelParallelStrategy)
    if isinstance(strategy, DeepSpeedStrategy):
        shards = strategy.config is not None and strategy.zero_stage_3
    if shards:
        raise ConfigError(
            f"{type(strategy).__name__} cuts the weights up among the devices, so that they can only pass "
            "forward together, while each plays episodes of its own. Use `trainer.strategy: fsdp2`, which "
            "cuts up the frozen weights and keeps the devices in lockstep; or `ddp` and a model that fits "
            "one device: quantised (`llm.quantization`), with gradient checkpointing "
            "(`llm.gradient_checkpointing`), or with a smaller `data.minibatch_size`. DeepSpeed up to stage "
            "2 leaves the weights whole."
        )
