"""The command line: `lgym fit | validate | test | predict | check | play --config FILE [--any.option VALUE ...]`."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from jsonargparse import ArgumentError, set_parsing_settings
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.trainer import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lgym import ranks
from lgym.callbacks import (
    AdapterExport,
    CollapseGuard,
    DiskGuard,
    EpisodeLogger,
    GracefulShutdown,
    RolloutProgress,
    RunSummary,
    TokenTraceLogger,
    TranscriptWriter,
    follow_first_process,
)
from lgym.cli.checkpoint_io import AtomicCheckpointIO
from lgym.cli.errors import LOST, MESSAGE, NOT_OPENED, essence, quieten
from lgym.cli.runs import CHECKPOINTS, NoCheckpointError, last_checkpoint, version_of
from lgym.cli.trainer import LgymTrainer
from lgym.cli.yaml_keys import refuse_repeated_keys
from lgym.data import RolloutDataModule
from lgym.envs.workers import BrokenEnvironmentError
from lgym.models import LLMConfig
from lgym.models.registry import find_entry
from lgym.modules import PolicyLearner
from lgym.modules.faults import NonFiniteLossError
from lgym.plain_text import truncate_middle
from lgym.terminal import escape_control_chars
from lgym.types import ConfigError

TRAINER_DEFAULTS: dict[str, Any] = {
    "accelerator": "auto",
    "default_root_dir": "runs",
    "devices": 1,
    "enable_model_summary": False,
    "log_every_n_steps": 1,
    "max_epochs": 100,
    "num_sanity_val_steps": 0,
}
"""What lgym sets otherwise than Lightning. `max_epochs` counts rollouts."""


LOOKING: dict[str, Any] = {
    "logger": False,
    "callbacks": [],
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
}
"""The trainer of a subcommand that only looks: no run's folder, and nobody who watches a run."""

SWITCHES = {"check": (), "play": ("greedy", "human", "render")}
"""The subcommands that only look, with their options that need no value."""


def same_seed(seed_everything: int | bool) -> int:
    """The data side's seed: one number seeds a run."""
    return int(seed_everything)


def default_precision(llm: LLMConfig) -> str:
    """`trainer.precision` where none is given: that of the model's registry entry."""
    if find_entry(llm.model).dtype == "float32":
        return "32-true"
    return "bf16-mixed" if llm.lora is None else "bf16-true"


class LgymCLI(LightningCLI):
    """LightningCLI with a module by class_path, lgym's callbacks, and one folder a run that resuming goes on in."""

    trainer: LgymTrainer

    def __init__(self, args: list[str] | None = None) -> None:
        words = set(sys.argv[1:] if args is None else args)
        names = set(self.subcommands())
        self._spared = names - words if words & names or words <= {"-h", "--help"} else set()
        raising = {"exit_on_error": False}  # jsonargparse would print a hundred lines of usage first
        super().__init__(
            PolicyLearner,
            RolloutDataModule,
            trainer_class=LgymTrainer,
            subclass_mode_model=True,
            seed_everything_default=0,
            trainer_defaults=TRAINER_DEFAULTS,
            save_config_kwargs={"overwrite": True},
            auto_configure_optimizers=False,
            parser_kwargs={
                "prog": "lgym",
                "description": "Online reinforcement learning of language-model agents in any Gymnasium environment.",
                **raising,
                **{name: dict(raising) for name in names},
            },
            args=args,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's, and those of `LgymTrainer`."""
        return {**LightningCLI.subcommands(), **dict.fromkeys(SWITCHES, {"model", "datamodule"})}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("seed_everything", "data.seed", compute_fn=same_seed)

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        if subcommand in self._spared:  # each takes a fifth of a second to make
            self._subcommand_method_arguments[subcommand] = []
            return self.init_parser(**kwargs)
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if "verbose" in self._subcommand_method_arguments[subcommand]:
            parser.set_defaults(verbose=False)  # RunSummary prints the result
        for action in parser._actions:
            if action.dest in SWITCHES.get(subcommand, ()):
                action.nargs, action.const = "?", True  # `--human` as well as `--human true`
        return parser

    def _parse_ckpt_path(self) -> None:
        """Nothing: Lightning would let the settings saved in a checkpoint say which classes run."""

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if kwargs.get("weights_only") is False:
            raise ConfigError(
                "weights_only: false would run whatever a checkpoint's author put in it. lgym's checkpoints do not need it: "
                "leave it out. To open another one that you trust, call Lightning's Trainer in a program of your own."
            )
        return kwargs | ({"weights_only": True} if "weights_only" in kwargs else {})

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        llm = config.model.get("init_args", {}).get("llm")
        if config.trainer.precision is None and llm is not None:  # a module of one's own may have none
            config.trainer.precision = default_precision(llm)
        self.run_version: int | str | None = None
        if self.subcommand != "fit":
            self.save_config_callback = None  # a run's folder keeps the configuration that it was trained with
        ckpt_path = config.get("ckpt_path")
        if not ckpt_path:
            return
        root = Path(config.trainer.default_root_dir)
        if ckpt_path in ("last", "auto"):
            try:
                ckpt_path = str(last_checkpoint(root))
            except NoCheckpointError:
                if ckpt_path == "last":
                    raise
                ckpt_path = None
            config.ckpt_path = ckpt_path
            if ckpt_path is None:
                return
        elif not Path(ckpt_path).is_file():
            raise ConfigError(
                f"--ckpt_path {ckpt_path}: there is no such file. Give a .ckpt file, `last` for the newest under {root}, or "
                "`auto` for that if there is one."
            )
        number = version_of(Path(ckpt_path), root)
        if number is not None:
            self.run_version = number if self.subcommand == "fit" else f"version_{number}/{self.subcommand}"

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self._get(self.config_init, "trainer")
        if self.subcommand in SWITCHES:
            return super().instantiate_trainer(**LOOKING, **kwargs)
        plugins = config.get("plugins") or []
        plugins = plugins if isinstance(plugins, list) else [plugins]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            kwargs["plugins"] = [*plugins, AtomicCheckpointIO()]
        if config.get("logger") in (None, True):
            root = Path(config["default_root_dir"])
            kwargs["logger"] = TensorBoardLogger(root.parent, name=root.name, version=self.run_version)
        return super().instantiate_trainer(**kwargs)

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Adds lgym's own callbacks, each unless the configuration already has one of its kind."""
        if self.subcommand in SWITCHES:
            return super()._instantiate_trainer(config, callbacks)
        given = config.get("callbacks") or []
        given = given if isinstance(given, list) else [given]
        ours: list[Callback] = [
            AdapterExport(),
            RunSummary(),
            EpisodeLogger(),
            TokenTraceLogger(),
            TranscriptWriter(),
            DiskGuard(),
            GracefulShutdown(),
            CollapseGuard(act=False),
        ]
        if config.get("enable_progress_bar") is not False:
            ours.append(RolloutProgress())
        folder = self._checkpoint_folder(config)
        if config.get("enable_checkpointing") is not False and folder is not None:
            ours.append(
                ModelCheckpoint(
                    dirpath=folder,
                    filename="last",
                    save_on_train_epoch_end=True,
                    enable_version_counter=False,
                )
            )
        kinds = {type(callback) for callback in given}
        return super()._instantiate_trainer(config, callbacks + [c for c in ours if type(c) not in kinds])

    def after_fit(self) -> None:
        """Ends with status 1 where a guard ended the run."""
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, CollapseGuard) and callback.stopped for callback in callbacks):
            sys.exit(1)

    def check(self, **arguments: Any) -> None:
        """Ends with status 1 where something would make training useless."""
        if any(finding.problem for finding in self.trainer.check(**arguments)):
            sys.exit(1)

    def _checkpoint_folder(self, config: dict[str, Any]) -> Path | None:
        logger = config.get("logger")
        if isinstance(logger, TensorBoardLogger):
            return Path(logger.log_dir) / CHECKPOINTS
        return Path(config["default_root_dir"]) / CHECKPOINTS


def main(args: list[str] | None = None) -> None:
    """Runs the command line; a mistake that lgym understands ends it with one message and exit status 1."""
    follow_first_process()
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    refuse_repeated_keys()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    quieten()
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # an agent in a file beside the YAML can be named in it
    try:
        LgymCLI(args)
    except ArgumentError as error:
        print(
            f"lgym: {escape_control_chars(truncate_middle(essence(str(error)), MESSAGE))}\n(`lgym fit --help` lists every option.)",
            file=sys.stderr,
        )
        sys.exit(2)
    except (
        ValueError,
        NonFiniteLossError,
        BrokenEnvironmentError,
        OSError,
        MisconfigurationException,
        UnpicklingError,
    ) as error:
        if os.environ.get("LGYM_DEBUG"):
            raise
        if getattr(error, "errno", None) == errno.ENOSPC:
            error = OSError(f"{error}. The disk is full; the last checkpoint is whole. Free some room and --ckpt_path last.")
        said = NOT_OPENED if isinstance(error, UnpicklingError) else escape_control_chars(truncate_middle(str(error), MESSAGE))
        print(f"\nlgym: {said}\n(LGYM_DEBUG=1 shows where in the code.)", file=sys.stderr)
        sys.exit(1)
    except RuntimeError as error:
        if os.environ.get("LGYM_DEBUG") or not ranks.is_loss_of_another(error):
            raise
        print(f"\nlgym: {LOST.format(rank=ranks.rank(), said=str(error).splitlines()[0][:200])}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
