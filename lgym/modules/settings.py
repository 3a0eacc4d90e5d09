"""What several algorithms ask of their settings."""

from __future__ import annotations

import math

import lightning as L

from lgym.models import LLMConfig
from lgym.types import ConfigError

WHOLE_EPISODES = "{} learns from the returns of whole episodes: set data.episodes_per_rollout, not data.turns_per_rollout."


def require_reference(kl_coef: float, llm: LLMConfig) -> None:
    """Refuses a divergence from the frozen reference where there is none, or one of negative weight."""
    require_weights(kl_coef=kl_coef)
    if kl_coef > 0 and llm.lora is None:
        raise ConfigError(
            f"kl_coef is {kl_coef}, but with `lora: null` every weight is trained and no reference is left to stay near to. "
            "Set kl_coef: 0, or train adapters."
        )


def require_weights(**values: float) -> None:
    """Refuses weights of a loss that are negative or not finite."""
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise ConfigError(f"{name} is {value}; it must be 0 or more.")


def require_scales(**values: float | None) -> None:
    """Refuses factors and limits that are not above 0, or not finite; `None` is no limit."""
    for name, value in values.items():
        if value is not None and not 0.0 < value < math.inf:
            raise ConfigError(f"{name} is {value}; it must be above 0.")


def require_counts(**values: int) -> None:
    """Refuses negative numbers of rollouts."""
    for name, value in values.items():
        if value < 0:
            raise ConfigError(f"{name} is {value}; it must be 0 or more rollouts.")


def require_clips(clip_low: float, clip_high: float) -> None:
    """Refuses bounds of the ratio that let nothing through."""
    if not 0.0 < clip_low < 1.0:
        raise ConfigError(f"clip_low is {clip_low}; it must lie between 0 and 1.")
    require_scales(clip_high=clip_high)


def require_whole_episodes(trainer: L.Trainer, name: str) -> None:
    """Refuses, before a model is loaded, rollouts whose border cuts episodes, where no value stands for the rest."""
    if getattr(trainer.datamodule, "turns_per_rollout", None) is not None:  # type: ignore[attr-defined]
        raise ConfigError(WHOLE_EPISODES.format(name))


def require_discounts(**values: float) -> None:
    """Refuses what is no share."""
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ConfigError(f"{name} is {value}; it must lie between 0 and 1.")
