"""LoRA adapters on a model: new ones, or those of an earlier run."""

from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lgym.models.config import LoraSettings
from lgym.models.registry import ModelEntry
from lgym.types import ConfigError

VALUE_HEAD = "value_head.safetensors"
ACTION_HEAD = "action_head.safetensors"


def add_adapters(model: PreTrainedModel, lora: LoraSettings, entry: ModelEntry, *, quantized: bool) -> Any:
    """Freezes a model and adds LoRA adapters to the chosen layers.

    Raises:
        ValueError: if they name layers that the model does not have.
    """
    output = model.get_output_embeddings()
    linear = sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and module is not output
        }
    )
    targets = lora.target_modules if lora.target_modules is not None else entry.lora_targets
    count = model.config.get_text_config().num_hidden_layers
    last_blocks = lora.blocks_of(count)
    blocks = None
    if last_blocks is not None:
        targets = linear if targets == "all-linear" else targets
        if isinstance(targets, str):
            raise ConfigError(
                f"lora.last_blocks is {last_blocks} and lora.target_modules is the pattern {targets!r}: "
                "peft takes blocks with a list of names only. Name the layers, or let the pattern say which "
                "blocks."
            )
        if last_blocks > count:
            raise ConfigError(
                f"lora.last_blocks is {last_blocks}, and the model has {count} blocks: set it to at "
                f"most {count}, or to null for all of them."
            )
        blocks = list(range(count - last_blocks, count))
    rank = lora.r if lora.r is not None else entry.lora_r
    peft_config = LoraConfig(
        r=rank,
        lora_alpha=lora.alpha if lora.alpha is not None else 2 * rank,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        layers_to_transform=blocks,
        task_type="CAUSAL_LM",
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    if quantized:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    try:
        return get_peft_model(model, peft_config)
    except ValueError as error:
        raise ConfigError(
            f"lora.target_modules {targets!r} do not fit this model: {str(error).strip()} Its linear layers "
            f"are {linear}: name those that are to have adapters."
        ) from error


def load_adapter(model: PreTrainedModel, folder: Path, lora: LoraSettings, *, quantized: bool) -> Any:
    """Freezes a model and puts the adapter of an earlier run, or of peft, on it, to train it without dropout.

    Raises:
        ConfigError: if it does not fit the model, is another one than the settings say, consists of
            virtual tokens, or does not choose by itself.
    """
    require_own_choice(folder)
    saved = PeftConfig.from_pretrained(str(folder))
    require_layers(saved, f"in {folder}")
    _require_agreement(folder, saved, lora)
    if quantized:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    try:
        adapted = PeftModel.from_pretrained(model, folder, is_trainable=True)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"The adapter in {folder} does not fit this model: {str(error).strip().splitlines()[0]} Set "
            "llm.model to the one that it was trained on."
        ) from error
    for module in adapted.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return adapted


def _require_agreement(folder: Path, saved: Any, lora: LoraSettings) -> None:
    blocks = getattr(saved, "layers_to_transform", None)
    blocks = [blocks] if isinstance(blocks, int) else blocks
    both = {
        "r": (lora.r, getattr(saved, "r", None)),
        "alpha": (lora.alpha, getattr(saved, "lora_alpha", None)),
        "last_blocks": (
            lora.last_blocks if isinstance(lora.last_blocks, int) else None,
            None if blocks is None else len(blocks),
        ),
        "dropout": (lora.dropout or None, None),
    }
    for name, (given, own) in both.items():
        if given is not None and given != own:
            raise ConfigError(
                f"llm.lora.{name} is {given}, and the adapter in {folder} has {own}: it keeps its own. Leave "
                f"llm.lora.{name} out, or llm.adapter."
            )


def require_layers(adapter: PeftConfig, where: str) -> None:
    """Raises `ConfigError` if an adapter consists of virtual tokens before the prompt: packed rows would go
    without."""
    if adapter.is_prompt_learning:
        raise ConfigError(
            f"The adapter {where} consists of virtual tokens ({type(adapter).__name__}), and lgym trains "
            "adapters in layers, such as LoRA: give one of these, or none."
        )


def require_own_choice(folder: Path) -> None:
    """Raises `ConfigError` if the choices of an adapter's agent come from a head beside the model."""
    if (folder / ACTION_HEAD).exists():
        raise ConfigError(
            f"The agent of {folder} was trained with action_values: head: its choices come from a head that "
            "lies beside the model, which an adapter is nothing without. Go on from the run's checkpoint "
            "(--ckpt_path), which play, test and serve take too, or train with action_values: prior."
        )


def load_value_head(head: nn.Module | None, folder: Path) -> None:
    """Restores the value head that lies beside an adapter, if one does and has the same width."""
    file = folder / VALUE_HEAD
    if head is None or not file.exists():
        return
    weights = load_file(file)
    own = head.state_dict()
    if weights.keys() == own.keys() and all(weights[name].shape == own[name].shape for name in own):
        head.load_state_dict(weights)
