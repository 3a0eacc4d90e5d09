"""TRL 1.16.0's GRPO trainer, in a virtual environment of its own beside the project (`.peers/trl`). (Not
named `trl`: the job runs from this folder, where that would hide the library.)"""

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

PACKAGES = ("trl==1.16.0", "peft", "accelerate", "datasets", "gymnasium")


def set_up() -> Path:
    """Makes TRL's environment, unless it is there; returns its Python."""
    return environment.set_up("trl", PACKAGES)


def export_model(name: str, folder: Path) -> None:
    """The model as transformers writes it."""
    device = torch.device("cpu")
    model, tokenizer = load_pretrained(
        LLMConfig(model=name), find_entry(name), dtype=torch.float32, device=device
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def rate(python: Path, model: Path, task: str, seconds: float, longest: float) -> Rate:
    """Trained replies a second."""
    if task != "letters":
        raise SystemExit(f"TRL has no environments; its task is `letters`, and {task} was asked for.")
    job = Path(__file__).with_name("trl_job.py")
    command = [str(python), str(job), str(model), str(seconds)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=longest)
    except subprocess.TimeoutExpired as error:
        raise SystemExit(
            f"TRL had not ended after {longest:g} s; give it more with --peer-longest."
        ) from error
    if ended.returncode != 0:
        raise SystemExit(f"TRL failed ({ended.returncode}; -9 is out of memory):\n{ended.stderr[-3000:]}")
    figures = json.loads(ended.stdout.strip().splitlines()[-1])
    return Rate(figures["replies"] / figures["seconds"])
