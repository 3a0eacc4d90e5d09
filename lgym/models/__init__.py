"""The language model: configuration, loading, adapters, value head, prefix sharing and generation."""

from lgym.models.build import ModelNotFoundError, build_llm
from lgym.models.config import LLMConfig, LoraSettings
from lgym.models.llm import ValueHeadLLM
from lgym.models.wrap import load_model_and_tokenizer, wrap_pretrained

__all__ = [
    "LLMConfig",
    "LoraSettings",
    "ModelNotFoundError",
    "ValueHeadLLM",
    "wrap_pretrained",
    "build_llm",
    "load_model_and_tokenizer",
]
