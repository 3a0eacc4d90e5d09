"""Runs of the command line inside the test's own process, on the tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch

from helpers import echo  # noqa: F401  (registers the environments)
from kill_test import differing
from lgym.cli import main
from lgym.cli.run_metrics import by_step, read_scalars

ECHO = {
    "trainer.accelerator": "cpu",
    "trainer.enable_progress_bar": "false",
    "trainer.max_epochs": "2",
    "trainer.check_val_every_n_epoch": "1",
    "model": "lgym.modules.PPO",
    "model.init_args.llm.lora.r": "4",
    "model.init_args.llm.value_hidden_size": "16",
    "data.env": "Echo-v0",
    "data.agent": "helpers.echo.EchoAgent",
    "data.num_envs": "8",
    "data.episodes_per_rollout": "32",
    "data.eval_episodes": "12",
}

QUICK = {
    "model__init_args__optimizer": "torch.optim.AdamW",
    "model__init_args__optimizer__init_args__lr": 0.005,
    "model__init_args__lr_scheduler": "null",
    "model__init_args__policy": "lgym.policies.CandidatePolicy",
    "model__init_args__policy__init_args__length_normalization": "token",
    "model__init_args__policy__init_args__temperature": 3,
}
"""With these the tiny model learns by PPO within seconds."""


class InterruptedRun(L.Callback):
    """Somebody presses Ctrl-C at the end of the first rollout."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        raise KeyboardInterrupt


def lgym(
    command: str,
    root: Path,
    model: Path | str,
    /,
    config: Path | tuple[Path, ...] | None = None,
    **options: Any,
) -> None:
    """`lgym command` on Echo (or configurations) with options, whose dots are written as two underscores.

    An option that is None is left out.
    """
    values = {} if config is not None else dict(ECHO)
    values |= {"trainer.default_root_dir": str(root), "model.init_args.llm.model": str(model)}
    values |= {name.replace("__", "."): value for name, value in options.items()}
    configs = (config,) if isinstance(config, Path) else config or ()
    args = [command, *(f"--config={file}" for file in configs)]
    for name, value in values.items():
        if value is not None:
            args.append(f"--{name}={value}")
    main(args)


def checkpoint(root: Path, version: int = 0) -> dict[str, Any]:
    return torch.load(root / f"version_{version}" / "checkpoints" / "last.ckpt", weights_only=True)


def scalars(root: Path, version: int = 0) -> dict[str, dict[int, float]]:
    """Every metric of a run by step, in the order of writing; of a step that was logged twice, the later value."""
    return {tag: by_step(entries) for tag, entries in read_scalars(root / f"version_{version}").items()}


def assert_same(one: Any, other: Any) -> None:
    """Nested dicts and lists of numbers and tensors, equal bit for bit."""
    found = differing(one, other)
    assert not found, f"These differ: {', '.join(found)}"


def assert_same_run(whole: Path, parts: Path, *, validated_alike: bool = True) -> None:
    """Both end with equal weights, optimizers, random states, environments and memories; their curves differ
    in times alone.

    A run that was stopped has evaluated at its stop, which another has not: then `validated_alike` is false.
    """
    expected, got = checkpoint(whole), checkpoint(parts)
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "RolloutDataModule", "lgym"):
        assert_same(expected[part], got[part])

    def curves(root: Path) -> dict[str, dict[int, str]]:
        """As text, in which a value that is no number equals itself."""
        left_out = ("val_", "epoch") if not validated_alike else ()
        return {
            name: {step: str(value) for step, value in curve.items()}
            for name, curve in scalars(root).items()
            if not name.startswith("time/") and not name.startswith(left_out)
        }

    assert_same(curves(whole), curves(parts))
