"""What the language model is: configuration, registry, loading, adapters, value head and the shared-prefix forward."""

from lgym.models.build import ModelNotFoundError, build_llm
from lgym.models.config import LLMConfig, LoraSettings
from lgym.models.llm import ValueHeadLLM
from lgym.models.ready_made import adopt, load_model_and_tokenizer

__all__ = [
    "LLMConfig",
    "LoraSettings",
    "ModelNotFoundError",
    "ValueHeadLLM",
    "adopt",
    "build_llm",
    "load_model_and_tokenizer",
]
