"""Online reinforcement learning of language-model agents in any Gymnasium environment, on PyTorch Lightning.

The names of `__all__` are public. All else is private and may change, except class paths of configurations.
Importing lgym alone is cheap: a name's module is imported when the name is first used.
"""

from importlib import import_module
from typing import Any

from lgym.math_libraries import configure_math_libraries

configure_math_libraries()

__version__ = "0.2.0"

_MODULES = {
    "A2C": "lgym.modules",
    "GRPO": "lgym.modules",
    "PPO": "lgym.modules",
    "REINFORCE": "lgym.modules",
    "RLOO": "lgym.modules",
    "Agent": "lgym.loop",
    "CandidatePolicy": "lgym.policies",
    "ConfigError": "lgym.types",
    "GeneralAgent": "lgym.agents",
    "GenerationPolicy": "lgym.policies",
    "GiGPO": "lgym.modules",
    "LLMConfig": "lgym.models",
    "LgymError": "lgym.types",
    "RolloutDataModule": "lgym.data",
    "TextAgent": "lgym.agents",
    "ThinkPolicy": "lgym.policies",
    "make_env": "lgym.envs",
}
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module 'lgym' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
