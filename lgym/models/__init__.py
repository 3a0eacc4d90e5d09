"""What the language model is: configuration, registry, loading, adapters, value head and the shared-prefix forward."""

from lgym.models.build import ModelNotFoundError, build_llm
from lgym.models.config import LLMConfig, LoraSettings
from lgym.models.llm import ValueHeadLLM

__all__ = ["LLMConfig", "LoraSettings", "ModelNotFoundError", "ValueHeadLLM", "build_llm"]
