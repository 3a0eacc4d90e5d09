"""lgym beside another library: the same model and environment on the same machine, in turns, training included.

    python scripts/bench_peers.py --peer llamagym --task blackjack

The peer gets a virtual environment of its own beside the project (`.peers/llamagym`), with the versions that it runs with,
and its own defaults. The two take turns, so that both meet the same machine; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from lgym.models.build import load_pretrained
from lgym.models.config import LLMConfig
from lgym.models.registry import find_entry

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = {"blackjack": "Blackjack-v1", "cartpole-exact": "CartPole-v1"}

WITH_DEPENDENCIES = ("numpy<2", "gymnasium", "safetensors", "tokenizers<0.19", "huggingface_hub<0.26", "pandas", "tyro")
WITHOUT_DEPENDENCIES = (
    *("llamagym==0.1.1", "trl==0.7.11", "transformers==4.38.2", "peft==0.9.0", "accelerate==0.27.2"),
    *("datasets<3", "pyarrow<20"),
)
"""LlamaGym's own pins no longer resolve; these versions run it."""

OF_DATASETS = (
    "xxhash",
    "multiprocess",
    "fsspec",
    "aiohttp",
    "requests",
    "pyyaml",
    "psutil",
    "regex",
    "tqdm",
    "pyarrow-hotfix",
)


def set_up() -> Path:
    """Makes LlamaGym's environment, unless it is there; returns its Python."""
    folder = ROOT / ".peers" / "llamagym"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    ready = folder / "ready"
    if ready.exists():
        return python
    print("Setting up LlamaGym in .peers/llamagym ...", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    import torch

    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, f"torch=={torch.__version__.split('+')[0]}", *WITH_DEPENDENCIES, *OF_DATASETS], check=True)
    subprocess.run([*install, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
    ready.touch()
    return python


def export_model(name: str, folder: Path) -> None:
    """The model in the layout that LlamaGym's transformers reads."""
    import torch

    model, tokenizer = load_pretrained(
        LLMConfig(model=name), find_entry(name), dtype=torch.float32, device=torch.device("cpu")
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    merges = content["model"]["merges"]
    content["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps({k: v for k, v in content.items() if k != "extra_special_tokens"}), encoding="utf-8")


def peers_rate(python: Path, model: Path, task: str, seconds: float) -> float:
    """Environment steps a second of LlamaGym's own loop, training included."""
    job = ROOT / "scripts" / "peers" / "llamagym_job.py"
    command = [str(python), str(job), str(model), ENVIRONMENTS[task], str(seconds)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        raise SystemExit(f"LlamaGym failed:\n{ended.stderr[-3000:]}")
    figures = json.loads(ended.stdout.strip().splitlines()[-1])
    return figures["steps"] / figures["seconds"]


def our_rate(model: str, task: str) -> float:
    """The same of lgym."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "--task", task, "--model", model, "--repeat", "1"]
        subprocess.run([*command, "--json", str(file)], check=True, capture_output=True)
        return json.loads(file.read_text())["results"][0]["steps_per_s"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=["llamagym"], default="llamagym")
    parser.add_argument("--task", choices=ENVIRONMENTS, default="blackjack")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=3, help="turns that each of the two takes")
    parser.add_argument("--seconds", type=float, default=60, help="least time of one of LlamaGym's turns")
    options = parser.parse_args(arguments)
    python = set_up()
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        export_model(options.model, Path(folder))
        for _ in tqdm(range(options.rounds), desc="rounds", file=sys.stderr):
            theirs.append(peers_rate(python, Path(folder), options.task, options.seconds))
            ours.append(our_rate(options.model, options.task))
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(f"{ENVIRONMENTS[options.task]}, {options.model}: environment steps a second, training included")
    print(f"  lgym      {statistics.median(ours):12,.3f}   ({', '.join(f'{rate:.1f}' for rate in ours)})")
    print(f"  LlamaGym  {statistics.median(theirs):12,.3f}   ({', '.join(f'{rate:.3f}' for rate in theirs)})")
    print(f"  ratio     {ratio:12,.0f}")


if __name__ == "__main__":
    main()
