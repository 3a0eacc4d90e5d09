"""The trained adapter as a plain peft folder, for use without lgym."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from safetensors.torch import save_file

from lgym.callbacks.model_card import model_card
from lgym.callbacks.provenance import read_run, subject
from lgym.models.adapters import ACTION_HEAD, VALUE_HEAD
from lgym.models.registry import find_entry
from lgym.modules import LLMLearner

VALUE_HEAD_NOTE = """
Its value head, which predicts the return, lies beside it as `value_head.safetensors`; nothing else needs it.
"""
ACTION_HEAD_NOTE = """
It was trained with `action_values: head`: its choices come from `action_head.safetensors`, and not from what
the model says. lgym plays it.
"""

LOAD_ADAPTER = (
    '`PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "<this folder>")`, of peft.'
)
LOAD_WHOLE = '`AutoModelForCausalLM.from_pretrained("<this folder>")`, of transformers.'


class AdapterExport(L.Callback):
    """Writes `adapter/` in the run's folder at the end of `fit`.

    `PeftModel.from_pretrained(base_model, "<run>/adapter")` opens it; the tokenizer lies in it too, the value
    head beside it as `value_head.safetensors`, and a README.md. A model trained without adapters is written
    whole.
    """

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # every process has to ask
        if trainer.is_global_zero and isinstance(pl_module, LLMLearner):
            run = {**subject(trainer, pl_module), **read_run(folder)}
            export_adapter(pl_module, folder / "adapter", run)


def export_adapter(module: LLMLearner, folder: Path, run: Mapping[str, Any]) -> None:
    """Writes the module's adapter (or whole model), tokenizer, value head and a card.

    No file of it names a folder of this machine.

    Args:
        module: what was trained.
        folder: where to.
        run: what is known of the run, as `lgym.callbacks.Provenance` records it.
    """
    llm = module.policy.llm
    base, on_hub = base_of(module.llm_config.model)
    model: Any = llm.model
    peft_config = getattr(model, "peft_config", {}).get("default")
    if peft_config is None:
        model.save_pretrained(folder)
    else:
        peft_config.base_model_name_or_path = base
        model.save_pretrained(folder, save_embedding_layers=False)  # peft would ask the Hub about them
    llm.tokenizer.save_pretrained(folder)
    package = find_entry(module.llm_config.model).package
    stood_in = on_hub and Path(llm.causal_lm.config.name_or_path).is_dir()  # for the Hub
    is_adapter = peft_config is not None
    load = LOAD_ADAPTER.format(base=base if on_hub else f"<the folder {base}>") if is_adapter else LOAD_WHOLE
    card = model_card(
        run,
        base=base,
        on_hub=on_hub,
        where=whereabouts(on_hub, package if stood_in else None),
        what="A LoRA adapter" if is_adapter else "A language model, every weight of it",
        library="peft" if is_adapter else "transformers",
        load=load,
    )
    for head, file, note in (
        (llm.value_head, VALUE_HEAD, VALUE_HEAD_NOTE),
        (llm.action_head, ACTION_HEAD, ACTION_HEAD_NOTE),
    ):
        if head is not None:
            save_file({name: x.cpu().contiguous() for name, x in head.state_dict().items()}, folder / file)
            card += note
    # In place of peft's, which is empty but for a path.
    (folder / "README.md").write_text(card, encoding="utf-8")


def base_of(model: str) -> tuple[str, bool]:
    """The name of the model that a user named, and True for an id on the Hub; of a folder its last part
    alone."""
    if Path(model).expanduser().is_dir():
        return Path(model).expanduser().resolve().name, False
    return find_entry(model).hub_id or model, True


def whereabouts(on_hub: bool, package: str | None) -> str:
    """A few words on a base model that is not the Hub's own."""
    if package is not None:
        return f", with the rounded weights of the Python package {package}"
    return "" if on_hub else ", a local folder of whoever trained it"
