"""Names, layout and precision of tensors in a GGUF file.

llama.cpp rotates neighboring numbers of a query or key in models of the architecture `llama`, where
transformers rotates a head's halves: the rows of these two layers are interleaved. Models of Qwen keep
transformers' order.
"""

from typing import Any

import gguf
import numpy as np
from torch import Tensor, nn

from lgym.types import ConfigError

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
"""By `model_type` of transformers."""

SUFFIXES = (".weight", ".bias")


class TensorLayout:
    """Names and order of a model's tensors.

    Args:
        config: the model's.

    Raises:
        ConfigError: if llama.cpp would read the model as another one.
    """

    def __init__(self, config: Any) -> None:
        kind = config.model_type
        if kind not in ARCHITECTURES:
            raise ConfigError(
                f"A GGUF file is written of the architectures {', '.join(ARCHITECTURES)}, and this model is "
                f"{kind!r}. Export it as `merged`; llama.cpp's convert_hf_to_gguf.py reads that folder."
            )
        rope = config.rope_parameters or {}
        if rope.get("rope_type", "default") != "default":
            raise ConfigError(
                f"The model stretches its positions (rope_type {rope['rope_type']!r}), which is not written "
                "to a GGUF file here. Export it as `merged`; llama.cpp's convert_hf_to_gguf.py reads that."
            )
        self.config = config
        self.architecture = ARCHITECTURES[kind]
        self._names = gguf.get_tensor_name_map(self.architecture, config.num_hidden_layers)
        self._interleaved = kind == "llama"

    def name(self, parameter: str) -> str:
        """llama.cpp's name of a parameter.

        Raises:
            ConfigError: if it has none.
        """
        name = self._names.get_name(parameter, SUFFIXES)
        if name is None:
            raise ConfigError(
                f"The weight {parameter} has no place in a GGUF file of {self.config.model_type!r}. Export "
                "the model as `merged`."
            )
        return name

    def rows(self, parameter: str, weight: Tensor) -> Tensor:
        """A weight, or the part of an adapter that gives its rows, in llama.cpp's order."""
        heads = {"q_proj": self.config.num_attention_heads, "k_proj": self.config.num_key_value_heads}
        count = next((n for layer, n in heads.items() if f".{layer}." in parameter), None)
        if count is None or not self._interleaved:
            return weight
        halves = weight.unflatten(0, (count, 2, -1))
        return halves.transpose(1, 2).reshape(weight.shape)


def add_tensor(writer: gguf.GGUFWriter, name: str, weight: Tensor, kind: gguf.GGMLQuantizationType) -> None:
    """Adds a tensor to a file: matrices in a precision, as far as their rows divide into its blocks; vectors,
    which are norms and biases, in fp32."""
    data = np.ascontiguousarray(weight.detach().float().cpu().numpy())
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if data.ndim < 2:
        kind = gguf.GGMLQuantizationType.F32
    elif data.shape[-1] % block:
        kind = gguf.GGMLQuantizationType.F16
    if kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, data)
    else:
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights by name, without those of the output layer where they are the embeddings'."""
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    return {
        name: weight for name, weight in model.state_dict().items() if not (tied and name == "lm_head.weight")
    }
