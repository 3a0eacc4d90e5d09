"""`lgym export`: a trained agent in the formats of other programs.

    lgym export runs/blackjack/version_0 --formats gguf --type q8_0

merged        a folder of transformers with the adapter in the weights, in bf16
gguf          one file for llama.cpp, Ollama and LM Studio, with a Modelfile for Ollama beside it
gguf-adapter  the adapter alone as GGUF, for `llama-server --lora` with a base of one's own

The run's `adapter` folder is the peft format already. A README.md beside them says what they are, with the
learning curve as a picture.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml

from lgym.callbacks.adapter_export import base_of, whereabouts
from lgym.callbacks.model_card import model_card
from lgym.callbacks.provenance import RUN_FILE, read_run
from lgym.cli.bench.pictures import learning_curves
from lgym.cli.bench.records import record_of
from lgym.cli.run_metrics import TURNS, read_scalars
from lgym.models.export import GGUF_TYPES, load_merged, write_gguf, write_gguf_adapter
from lgym.models.registry import find_entry
from lgym.pretrained import ROOT, names
from lgym.terminal import say
from lgym.types import ConfigError

LOAD = {
    "merged": '`AutoModelForCausalLM.from_pretrained("<this folder>/merged")`, of transformers',
    "gguf": "`llama-server -m {gguf}` of llama.cpp, or `ollama create NAME -f Modelfile`",
    "gguf-adapter": "`llama-server -m <the base as GGUF> --lora adapter.gguf`, of llama.cpp",
}
PICTURE = "learning_curve.png"
RUN_HELP = "folder of a run, or of its adapter; or an agent that comes with lgym"
LIBRARY = {"merged": "transformers", "gguf": "gguf", "gguf-adapter": "gguf"}


@dataclass
class Export:
    """A trained agent, and the folder that it is exported to.

    Attributes:
        folder: of the run.
        adapter: the folder that `fit` exported.
        run: what is known of its run.
        base: the model that was trained.
        kind: a key of `GGUF_TYPES`.
        out: the folder to write into.
        loading: `revision` and `trust_remote_code` of the base, as `load_merged` takes them.
    """

    folder: Path
    adapter: Path
    run: Mapping[str, Any]
    base: str
    kind: str
    out: Path
    loading: Mapping[str, Any]

    @cached_property
    def merged(self) -> tuple[Any, Any]:
        """The model with its adapter in the weights, and the tokenizer."""
        say(f"Adding the adapter to {self.base} ...")
        return load_merged(self.base, self.adapter, **self.loading)

    @property
    def gguf(self) -> Path:
        return self.out / f"model-{self.kind}.gguf"

    def write_merged(self) -> Path:
        """Writes the folder of transformers."""
        model, tokenizer = self.merged
        folder = self.out / "merged"
        state = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
        model.save_pretrained(folder, state_dict=state)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text = json.dumps({**config, "dtype": "bfloat16"}, indent=2)  # in place of the model's own, fp32
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")
        tokenizer.save_pretrained(folder)
        return folder

    def write_gguf(self) -> Path:
        """Writes the file, and a Modelfile with the agent's system prompt."""
        model, tokenizer = self.merged
        name = f"{self.run.get('env') or self.adapter.parent.name}-{self.run.get('algorithm', 'lgym')}"
        write_gguf(model, tokenizer, self.gguf, kind=self.kind, name=name)
        (self.out / "Modelfile").write_text(modelfile(self.gguf.name, self.run), encoding="utf-8")
        return self.gguf

    def write_gguf_adapter(self) -> Path:
        """Writes the adapter's file."""
        model, _ = self.merged
        file = self.out / "adapter.gguf"
        write_gguf_adapter(self.adapter, model.config, file)
        return file

    def write_card(self, formats: Sequence[str]) -> None:
        """Writes README.md."""
        base, on_hub = base_of(self.base)
        ways = " or ".join(LOAD[name].format(gguf=self.gguf.name) for name in formats)
        card = model_card(
            self.run,
            base=base,
            on_hub=on_hub,
            where=whereabouts(on_hub, find_entry(self.base).package if "/" not in self.base else None),
            what="A language model",
            library=LIBRARY[formats[0]],
            load=f"{ways}.",
        )
        (self.out / "README.md").write_text(card, encoding="utf-8")

    def add_picture(self) -> None:
        """Draws the run's learning curve and shows it in the card; nothing where TensorBoard's files are
        gone."""
        if not (self.folder / RUN_FILE).exists() or TURNS not in read_scalars(self.folder):
            return
        curve = learning_curves([record_of(self.folder, f"{self.run['algorithm']} on {self.run['env']}")])
        curve.savefig(self.out / PICTURE, dpi=100, metadata={"Software": None})
        with (self.out / "README.md").open("a", encoding="utf-8") as card:
            card.write(f"\n## Learning curve\n\n![return over turns]({PICTURE})\n")


FORMATS: dict[str, Callable[[Export], Path]] = {
    "merged": Export.write_merged,
    "gguf": Export.write_gguf,
    "gguf-adapter": Export.write_gguf_adapter,
}


def modelfile(model: str, run: Mapping[str, Any]) -> str:
    """Ollama's description: the file, the temperature that it was trained at, the system prompt."""
    lines = [f"FROM ./{model}", "PARAMETER temperature 1"]
    if run.get("system_prompt"):
        lines.append('SYSTEM """' + run["system_prompt"].replace('"""', "'''") + '"""')
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "lgym export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=["gguf"], help="default gguf")
    parser.add_argument("--type", choices=list(GGUF_TYPES), default="q8_0", help="of a GGUF's matrices: q8_0")
    parser.add_argument(
        "--out", type=Path, help="the folder to write into; by default RUN/export, or runs/export/AGENT"
    )
    parser.add_argument("--base", help="the model that was trained, if it lies elsewhere now")
    return parser


def find(run: Path, base: str | None, kind: str, out: Path | None, place: str = "export") -> Export:
    """The export of a run's folder, or of an agent that comes with lgym.

    Args:
        run: the folder, or the agent's name.
        base: the model that was trained; `None` takes what the run says, in the revision that it says.
        kind: a key of `GGUF_TYPES`.
        out: the folder to write into; `None` takes one of the run's, or one below `runs`.
        place: the name of that.

    Raises:
        ConfigError: if there is no adapter, or it is not known what it belongs to.
    """
    packed = not run.exists() and str(run) in names()
    adapter = ROOT / run if packed else run / "adapter" if (run / "adapter").is_dir() else run
    if not any((adapter / name).exists() for name in ("adapter_config.json", "config.json")):
        raise ConfigError(
            f"{run} has no folder `adapter`: give the folder of a run of `lgym fit`, which writes it at its "
            f"end, or an agent that comes with lgym ({', '.join(names())})."
        )
    folder = adapter.parent if adapter.name == "adapter" else adapter
    loading: dict[str, Any] = {}
    if base is None and (folder / "config.yaml").exists():
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        llm = config["model"]["init_args"]["llm"]
        base = llm["model"]
        loading = {name: llm[name] for name in ("revision", "trust_remote_code") if name in llm}
    if base is None:
        raise ConfigError(f"{folder} has no config.yaml that names the base model: give it by --base.")
    default = Path("runs") / place / run if packed else folder / place
    return Export(folder, adapter, read_run(folder), base, kind, out or default, loading)


def main(words: Sequence[str]) -> None:
    """Writes the formats."""
    arguments = parser().parse_args(words)
    export = find(arguments.run, arguments.base, arguments.type, arguments.out)
    export.out.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(arguments.formats):
        path = FORMATS[name](export)
        files = [path] if path.is_file() else list(path.rglob("*"))
        say(f"{name:<12}  {path}  ({sum(f.stat().st_size for f in files) / 1e6:,.1f} MB)")
    export.write_card(arguments.formats)
    export.add_picture()
    say(f"{'card':<12}  {export.out / 'README.md'}")
