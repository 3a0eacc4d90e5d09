"""Trained models in the formats of other programs: merged folders of transformers, and GGUF files."""

from lgym.models.export.gguf_adapter import write_gguf_adapter
from lgym.models.export.gguf_model import GGUF_TYPES, write_gguf
from lgym.models.export.merged import load_merged

__all__ = ["GGUF_TYPES", "load_merged", "write_gguf", "write_gguf_adapter"]
