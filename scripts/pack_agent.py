"""Makes a finished run an agent that comes with lgym.

    python scripts/pack_agent.py cartpole configs/cartpole.yaml runs/bench/cartpole-0/version_0

writes `lgym/pretrained/cartpole`: the adapter and the value head in bf16, the YAML, `run.json` and the card.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from lgym.cli.push import without_folders
from lgym.models.adapters import VALUE_HEAD
from lgym.pretrained import ADAPTER, ROOT

WEIGHTS = ("adapter_model.safetensors", VALUE_HEAD)


def pack(name: str, config: Path, run: Path) -> Path:
    """Writes the folder of an agent.

    Args:
        name: the agent's.
        config: the YAML that it was trained by, which says how it plays.
        run: the run's folder.
    """
    folder = ROOT / name
    folder.mkdir(exist_ok=True)
    for file in WEIGHTS:
        weights = load_file(run / "adapter" / file)
        small = {key: w.to(torch.bfloat16) if w.ndim == 2 else w for key, w in weights.items()}
        save_file(small, folder / file)
    for source in (run / "adapter" / ADAPTER, run / "adapter" / "README.md"):
        shutil.copy(source, folder)
    shutil.copy(config, folder / "config.yaml")
    known = without_folders(json.loads((run / "run.json").read_text(encoding="utf-8")))
    (folder / "run.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="the agent's")
    parser.add_argument("config", type=Path, help="its YAML")
    parser.add_argument("run", type=Path, help="the folder of its run")
    arguments = parser.parse_args()
    folder = pack(arguments.name, arguments.config, arguments.run)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
