"""A base model with its adapter added to its weights."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lgym.models.adapters import require_own_choice
from lgym.models.wrap import load_model_and_tokenizer
from lgym.types import ConfigError


def load_merged(
    base: str, adapter: Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, Any]:
    """Loads a base in fp32 and adds an adapter to its weights.

    W + alpha / r B A for each layer with an adapter ("LoRA", Hu et al. 2021, arXiv:2106.09685, section 4.1).

    Args:
        base: a registry name, Hub id, folder or GGUF file, as `llm.model`. Of a model that was trained whole
            it is not needed.
        adapter: the folder that `fit` exported, with an adapter or with a whole model.
        revision: branch, tag or commit of the base's Hub repository, as `llm.revision`.
        trust_remote_code: run code that comes with the model, as `llm.trust_remote_code`.

    Returns:
        The model, and the tokenizer that it was trained with: the folder's, or else the base's.

    Raises:
        ConfigError: if the folder has neither, its adapter does not fit the base, or does not choose by
            itself.
    """
    require_own_choice(adapter)
    if (adapter / "config.json").exists():
        trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        whole = AutoModelForCausalLM.from_pretrained(adapter, dtype=torch.float32, **trust)
        return whole, AutoTokenizer.from_pretrained(adapter, **trust)
    if not (adapter / "adapter_config.json").exists():
        raise ConfigError(
            f"{adapter} holds neither an adapter (adapter_config.json) nor a model (config.json): give the "
            "folder `adapter` of a run of `lgym fit`."
        )
    model, tokenizer = load_model_and_tokenizer(
        base, dtype=torch.float32, revision=revision, trust_remote_code=trust_remote_code
    )
    if (adapter / "tokenizer_config.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(adapter, trust_remote_code=trust_remote_code)
    try:
        return PeftModel.from_pretrained(model, adapter).merge_and_unload(), tokenizer
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"The adapter in {adapter} does not fit {base}: {reason} Give the model that it was trained on "
            "by --base."
        ) from error
