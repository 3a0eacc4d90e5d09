"""Weights that are cut up among devices, which playing cannot do with."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from lgym.types import ConfigError


def require_whole_weights(strategy: Any) -> None:
    """Raises ValueError where every forward pass would have to be taken by all processes together.

    Each plays episodes of its own, so they pass forward different numbers of times, and would wait for each
    other for ever.
    """
    shards = isinstance(strategy, FSDPStrategy | ModelParallelStrategy)
    if isinstance(strategy, DeepSpeedStrategy):
        shards = strategy.config is not None and strategy.zero_stage_3
    if shards:
        raise ConfigError(
            f"{type(strategy).__name__} cuts the weights up among the devices, so that they can only pass "
            "forward together, while each plays episodes of its own. Use `trainer.strategy: ddp` and make "
            "the model fit one device: adapters on a quantised model (`llm.quantization`), gradient "
            "checkpointing (`llm.gradient_checkpointing`), or a smaller `data.minibatch_size`. DeepSpeed up "
            "to stage 2 leaves the weights whole."
        )
