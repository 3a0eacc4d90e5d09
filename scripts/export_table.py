"""Compares what `lgym export` writes with the trained adapter: differences of action probabilities.

    python scripts/export_table.py lgym/pretrained/frozen_lake --episodes 50

Plays sampled episodes with the adapter on its base in fp32, loads every format again and asks it the same
prompts. Prints a row per format as Markdown: size, largest and mean difference of an action's probability,
and the share of prompts whose likeliest action is the same.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lgym.cli.command_line import LgymCLI
from lgym.cli.export import Export, find
from lgym.data import RolloutDataModule
from lgym.data.rollout.env_runner import EnvRunner
from lgym.models.export import GGUF_TYPES
from lgym.modules import LLMLearner
from lgym.rollout import Prompt

Found = TypeVar("Found")
HEADER = ("format", "MB", "largest difference", "mean difference", "same likeliest action")


def prompts_of_play(data: RolloutDataModule, module: LLMLearner, episodes: int) -> list[Prompt]:
    """The distinct prompts of sampled episodes."""
    runner = EnvRunner(data.make_env("predict"), data.episode_prompts("predict"))
    rng, met = np.random.default_rng(0), dict[Prompt, None]()
    with module.inference() as policy:
        for seed in range(episodes):
            runner.reset(seed)
            while runner.live:
                met[runner.prompt] = None
                runner.step(policy.act([runner.prompt], rng, keep_kv_cache=False)[0][0])
    return list(met)


def asked(options: Sequence[str], question: Callable[[RolloutDataModule, LLMLearner], Found]) -> Found:
    """What a question finds in fp32, of the data and the model that a command line's options make."""
    found: list[Found] = []

    class AskingCLI(LgymCLI):
        """The command line, whose `play` asks."""

        def play(self, model: Any, datamodule: Any, ckpt_path: str | None = None, **_: Any) -> None:
            self.trainer._with_model(
                lambda: found.append(question(datamodule, model)), model, datamodule, ckpt_path
            )

    AskingCLI(["play", *options, "--trainer.precision=32-true", "--trainer.accelerator=cpu"])
    return found[0]


def probabilities(options: Sequence[str], episodes: int, prompts: list[Prompt]) -> Tensor:
    """[n, C] of the candidates of prompts; where there are none, they are first met in play."""

    def question(data: RolloutDataModule, module: LLMLearner) -> Tensor:
        prompts.extend([] if prompts else prompts_of_play(data, module, episodes))
        with module.inference() as policy:
            return torch.cat([policy([prompt])[0].exp().float() for prompt in prompts])

    return asked(options, question)


def written(export: Export) -> list[tuple[str, Path]]:
    """Every format, with the name of its row."""
    rows = [("merged (bf16)", export.write_merged())]
    for kind in GGUF_TYPES:
        export.kind = kind
        rows.append((f"gguf, {kind}", export.write_gguf()))
    return rows


def row(name: str, path: Path, got: Tensor, expected: Tensor) -> tuple[str, ...]:
    """A format as a row of the table."""
    difference = (got - expected).abs()
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    same = (got.argmax(1) == expected.argmax(1)).float().mean()
    size = f"{sum(file.stat().st_size for file in files) / 1e6:.0f}"
    return name, size, f"{difference.max():.1e}", f"{difference.mean():.1e}", f"{same:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a run, or of an agent that comes with lgym")
    parser.add_argument("--episodes", type=int, default=50, help="whose prompts are asked")
    arguments = parser.parse_args()
    config = ["--config", str(arguments.run / "config.yaml")]
    prompts: list[Prompt] = []
    with tempfile.TemporaryDirectory() as folder:
        export = find(arguments.run, None, "f32", Path(folder))
        adapter = ["--model.init_args.llm.adapter", str(export.adapter)]
        expected = probabilities([*config, *adapter], arguments.episodes, prompts)
        rows = []
        for name, path in written(export):
            model = ["--model.init_args.llm.model", str(path)]
            rows.append(row(name, path, probabilities([*config, *model], 0, prompts), expected))
    print(f"\n{len(prompts)} distinct prompts of {arguments.episodes} episodes\n")
    for cells in [HEADER, ("---",) * len(HEADER), *rows]:
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
