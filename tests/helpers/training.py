"""Training by Lightning's `Trainer` alone, without a command line, with every metric kept."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers.logger import Logger

from helpers import echo
from lgym.data import RolloutDataModule
from lgym.models import LLMConfig, LoraSettings


class MemoryLogger(Logger):
    """Keeps every metric, rollout by rollout."""

    name, version = "memory", 0

    def __init__(self) -> None:
        super().__init__()
        self.curves: dict[str, list[float]] = defaultdict(list)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            self.curves[name].append(value)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        return


def tiny_config(model_folder: Path, **changes: Any) -> LLMConfig:
    return LLMConfig(
        **{"model": str(model_folder), "lora": LoraSettings(r=4), "value_hidden_size": 16, **changes}
    )


def fit(
    module: Any, folder: Path, *, data: dict[str, Any], trainer: dict[str, Any]
) -> dict[str, list[float]]:
    """Train for two rollouts on the echo task, without evaluation.

    Args:
        module: the algorithm.
        folder: for what the run leaves behind.
        data: arguments of the data module.
        trainer: arguments of the trainer; with `limit_val_batches` above 0 it evaluates at the end.

    Returns:
        Each metric, rollout by rollout.
    """
    L.seed_everything(0, verbose=False)
    logger = MemoryLogger()
    settings = {
        "accelerator": "cpu",
        "max_epochs": 2,
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
        "check_val_every_n_epoch": trainer.get("max_epochs", 2),
        "logger": logger,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    task = {"env": "Echo-v0", "agent": echo.EchoAgent(), "num_envs": 8, "episodes_per_rollout": 32}
    L.Trainer(**{**settings, **trainer}).fit(module, RolloutDataModule(**{**task, **data}))
    return logger.curves
