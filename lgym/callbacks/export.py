"""The trained adapter as a plain peft folder, for use without lgym."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from safetensors.torch import save_file

from lgym.models.registry import find_entry
from lgym.modules import PolicyLearner


class AdapterExport(L.Callback):
    """At the end of `fit` writes `adapter/` in the run's folder.

    `PeftModel.from_pretrained(base_model, "<run>/adapter")` opens it; the tokenizer lies in it too, and the value head
    beside it as `value_head.safetensors`. A model trained without adapters is written whole.
    """

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # asked of all processes
        if trainer.is_global_zero and isinstance(pl_module, PolicyLearner):
            export_adapter(pl_module, folder / "adapter")


def export_adapter(module: PolicyLearner, folder: Path) -> None:
    """Writes the module's adapter (or whole model), tokenizer and value head."""
    llm = module.policy.llm
    peft_config = getattr(llm.model, "peft_config", {}).get("default")
    if peft_config is not None:
        entry = find_entry(module.llm_config.model)
        peft_config.base_model_name_or_path = entry.hub_id or module.llm_config.model
    model: Any = llm.model
    options = {} if peft_config is None else {"save_embedding_layers": False}  # peft would ask the Hub about them
    model.save_pretrained(folder, **options)
    llm.tokenizer.save_pretrained(folder)
    if llm.value_head is not None:
        head = {name: tensor.detach().cpu().contiguous() for name, tensor in llm.value_head.state_dict().items()}
        save_file(head, folder / "value_head.safetensors")
