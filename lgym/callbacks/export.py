"""The trained adapter as a plain peft folder, for use without lgym."""

from pathlib import Path
from typing import Any

import lightning as L
from safetensors.torch import save_file

from lgym.models.registry import find_entry
from lgym.modules import LLMLearner

CARD = """\
---
{front}
---

{what} trained with lgym by {algorithm} on `{env}`.

Its base is `{base}`{where}. To load it: {load}
"""

VALUE_HEAD = """
Its value head, which predicts the return, lies beside it as `value_head.safetensors`; nothing else needs it.
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
            data = getattr(trainer, "datamodule", None)
            export_adapter(pl_module, folder / "adapter", getattr(data, "env", "an environment"))


def export_adapter(module: LLMLearner, folder: Path, env: str) -> None:
    """Writes the module's adapter (or whole model), tokenizer, value head and a card; `env` is what it was
    trained on.

    No file of it names a folder of this machine.
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
    where = "" if on_hub else ", a local folder of whoever trained it"
    if on_hub and Path(llm.causal_lm.config.name_or_path).is_dir():  # a package stood in for the Hub
        where = (
            f", with the rounded weights of the Python package {find_entry(module.llm_config.model).package}"
        )
    card = model_card(base, on_hub, where, type(module).__name__, env, adapter=peft_config is not None)
    if llm.value_head is not None:
        head = {name: tensor.cpu().contiguous() for name, tensor in llm.value_head.state_dict().items()}
        save_file(head, folder / "value_head.safetensors")
        card += VALUE_HEAD
    # In place of peft's, which is empty but for a path.
    (folder / "README.md").write_text(card, encoding="utf-8")


def base_of(model: str) -> tuple[str, bool]:
    """The name of the model that a user named, and True for an id on the Hub; of a folder its last part
    alone."""
    if Path(model).expanduser().is_dir():
        return Path(model).expanduser().resolve().name, False
    return find_entry(model).hub_id or model, True


def model_card(base: str, on_hub: bool, where: str, algorithm: str, env: str, *, adapter: bool) -> str:
    """The exported folder's README.md, with the Hub's front matter."""
    library = f"library_name: {'peft' if adapter else 'transformers'}"
    return CARD.format(
        front=f"base_model: {base}\n{library}" if on_hub else library,
        what="A LoRA adapter" if adapter else "A language model, every weight of it",
        algorithm=algorithm,
        env=env,
        base=base,
        where=where,
        load=LOAD_ADAPTER.format(base=base if on_hub else f"<the folder {base}>") if adapter else LOAD_WHOLE,
    )
