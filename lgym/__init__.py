"""Online reinforcement learning of language-model agents in any Gymnasium environment, on PyTorch Lightning."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgym.loop import Agent

__version__ = "0.1.0"
__all__ = ["Agent", "__version__"]


def __getattr__(name: str) -> Any:
    """`Agent` when it is first asked for: importing lgym alone costs nothing."""
    if name == "Agent":
        from lgym.loop import Agent

        return Agent
    raise AttributeError(f"module 'lgym' has no attribute {name!r}")
