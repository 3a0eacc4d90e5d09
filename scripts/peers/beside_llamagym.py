"""LlamaGym 0.1.1, in a virtual environment of its own beside the project (`.peers/llamagym`), with the
versions that it runs with and its own defaults. (Not named `llamagym`: the job runs from this folder, where
that would hide the library.)"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch

from lgym.models.build import load_pretrained
from lgym.models.config import LLMConfig
from lgym.models.registry import find_entry
from peers import environment
from peers.rate import Rate

ENVIRONMENTS = {"blackjack": "Blackjack-v1", "cartpole": "CartPole-v1", "cartpole-exact": "CartPole-v1"}
"""Of the tasks of `scripts/bench.py`."""

WITH_DEPENDENCIES = (
    "numpy<2",
    "gymnasium",
    "safetensors",
    "tokenizers<0.19",
    "huggingface_hub<0.26",
    "pandas",
    "tyro",
)
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
    return environment.set_up(
        "llamagym", [*WITH_DEPENDENCIES, *OF_DATASETS], ["--no-deps", *WITHOUT_DEPENDENCIES]
    )


def export_model(name: str, folder: Path) -> None:
    """The model in the layout that LlamaGym's transformers reads."""
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
    path.write_text(
        json.dumps({k: v for k, v in content.items() if k != "extra_special_tokens"}), encoding="utf-8"
    )


def rate(python: Path, model: Path, task: str, seconds: float, longest: float) -> Rate:
    """Environment steps a second of LlamaGym's own loop, training included."""
    job = Path(__file__).with_name("llamagym_job.py")
    command = [str(python), str(job), str(model), ENVIRONMENTS[task], str(seconds), str(longest)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        raise SystemExit(
            f"LlamaGym failed ({ended.returncode}; -9 is out of memory):\n{ended.stderr[-3000:]}"
        )
    figures = json.loads(ended.stdout.strip().splitlines()[-1])
    return Rate(figures["steps"] / figures["seconds"], at_most=figures["stopped"])
