"""What several algorithms ask of their settings."""

from __future__ import annotations

from lgym.models import LLMConfig


def require_reference(kl_coef: float, llm: LLMConfig) -> None:
    """Refuses a divergence from the frozen reference where there is none, or one of negative weight."""
    if kl_coef < 0:
        raise ValueError(f"kl_coef is {kl_coef}; it must be 0 or more.")
    if kl_coef > 0 and llm.lora is None:
        raise ValueError(
            f"kl_coef is {kl_coef}, but with `lora: null` every weight is trained and no reference is left to stay near to. "
            "Set kl_coef: 0, or train adapters."
        )


def require_discounts(**values: float) -> None:
    """Refuses what is no share."""
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} is {value}; it must lie between 0 and 1.")
