"""The subcommands of `lgym`, on Lightning's command line."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace, set_parsing_settings
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins import CheckpointIO

from lgym import distributed
from lgym.callbacks import (
    AdapterExport,
    BestCheckpoint,
    CollapseGuard,
    DiskGuard,
    EpisodeLogger,
    GracefulShutdown,
    LastCheckpoint,
    Provenance,
    RolloutNotes,
    RolloutProgress,
    RunSummary,
    TimeLimit,
    TokenTraceLogger,
    TranscriptWriter,
    follow_first_process,
)
from lgym.callbacks.last_checkpoint import save_between_rollouts
from lgym.callbacks.provenance import RUN_FILE
from lgym.cli.checkpoint_io import AtomicCheckpointIO
from lgym.cli.errors import errors_as_messages
from lgym.cli.help_texts import DESCRIPTION, describe_options
from lgym.cli.new import changed
from lgym.cli.report import REPORT, write_report
from lgym.cli.runs import find_checkpoint, new_run, run_of
from lgym.cli.trainer import FinalEvaluation, LgymTrainer
from lgym.cli.words import written_out
from lgym.cli.yaml_keys import refuse_duplicate_keys
from lgym.data import RolloutDataModule
from lgym.models import LLMConfig
from lgym.models.devices import available_accelerator, multiplies_bf16
from lgym.models.registry import find_entry
from lgym.modules import LLMLearner
from lgym.terminal import say
from lgym.types import ConfigError

TRAINER_DEFAULTS: dict[str, Any] = {
    "accelerator": "auto",
    "check_val_every_n_epoch": 5,
    "default_root_dir": "runs",
    "devices": 1,
    "enable_model_summary": False,
    "gradient_clip_val": 1.0,
    "log_every_n_steps": 1,
    "max_epochs": 40,
    "num_sanity_val_steps": -1,
}

READ_ONLY_TRAINER: dict[str, Any] = {
    "logger": False,
    "callbacks": [],
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
}

# The subcommands that write no run's folder, with their options that need no value.
READ_ONLY_SWITCHES = {"check": ("probe",), "new": (), "play": ("greedy", "human", "render"), "serve": ()}


def default_precision(llm: LLMConfig, accelerator: Any) -> str:
    """`trainer.precision` for a run that gives none: that of the model's registry entry, and fp32 on a device
    that is slow in bf16."""
    if find_entry(llm.model).dtype == "float32" or not multiplies_bf16(accelerator):
        return "32-true"
    return "bf16-mixed" if llm.lora is None else "bf16-true"


def warn_of_slow_bf16(precision: Any, accelerator: Any) -> None:
    """Warn of a precision that is slow here, as where a GPU's run is evaluated on a laptop."""
    if str(precision).startswith("bf16") and not multiplies_bf16(accelerator):
        warnings.warn(
            f"trainer.precision is {precision}, and this processor has no instructions for bf16: it takes "
            "several times as long as in fp32. --trainer.precision 32-true is quicker here, and differs in "
            "its rounding alone.",
            stacklevel=2,
        )


class RunConfig(SaveConfigCallback):
    """Saves a run's settings without the checkpoint that it went on from: by them a new run begins."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **options: Any) -> None:
        config = config.clone()
        config.ckpt_path = None
        super().__init__(parser, config, **options)


class LgymCLI(LightningCLI):
    """LightningCLI with a module by class_path, lgym's callbacks, and one folder per run, in which resuming
    goes on."""

    trainer: LgymTrainer

    def __init__(self, args: list[str] | None = None) -> None:
        words = set(sys.argv[1:] if args is None else args)
        names = set(self.subcommands())
        self._unused_subcommands = names - words if words & names else set()
        raising = {"exit_on_error": False}  # jsonargparse would print a hundred lines of usage first
        super().__init__(
            LLMLearner,
            RolloutDataModule,
            trainer_class=LgymTrainer,
            subclass_mode_model=True,
            seed_everything_default=0,
            trainer_defaults=TRAINER_DEFAULTS,
            save_config_callback=RunConfig,
            save_config_kwargs={"overwrite": True},
            auto_configure_optimizers=False,
            parser_kwargs={
                "prog": "lgym",
                "description": DESCRIPTION,
                **raising,
                **{name: dict(raising) for name in names},
            },
            args=args,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's subcommands, and those of `LgymTrainer`."""
        return {**LightningCLI.subcommands(), **dict.fromkeys(READ_ONLY_SWITCHES, {"model", "datamodule"})}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    def _prepare_subcommand_parser(
        self, klass: type, subcommand: str, **kwargs: Any
    ) -> LightningArgumentParser:
        if subcommand in self._unused_subcommands:  # each takes a fifth of a second to make
            self._subcommand_method_arguments[subcommand] = []
            return self.init_parser(**kwargs)
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if "verbose" in self._subcommand_method_arguments[subcommand]:
            parser.set_defaults(verbose=False)  # RunSummary prints the result
        for action in parser._actions:
            if action.dest in READ_ONLY_SWITCHES.get(subcommand, ()):
                action.nargs, action.const = "?", True  # `--human` as well as `--human true`
        describe_options(parser, subcommand)
        return parser

    def _parse_ckpt_path(self) -> None:
        """Does nothing: Lightning would let the settings saved in a checkpoint say which classes run."""

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if kwargs.get("weights_only") is False:
            raise ConfigError(
                "weights_only: false would run whatever a checkpoint's author put in it. lgym's checkpoints "
                "do not need it: leave it out. To open another one that you trust, call Lightning's Trainer "
                "in a program of your own."
            )
        return kwargs | ({"weights_only": True} if "weights_only" in kwargs else {})

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        llm = config.model.get("init_args", {}).get("llm")  # which a module of one's own may not have
        if self.subcommand != "new":  # what it writes is for any machine
            folder = os.path.expandvars(config.trainer.default_root_dir or ".")
            config.trainer.default_root_dir = os.path.expanduser(folder)
            if config.trainer.precision is None and llm is not None:
                config.trainer.precision = default_precision(llm, config.trainer.accelerator)
        warn_of_slow_bf16(config.trainer.precision, config.trainer.accelerator)
        self.run_version: str | None = None
        if config.get("ckpt_path"):
            root = Path(config.trainer.default_root_dir)
            checkpoint = find_checkpoint(config.ckpt_path, root)
            config.ckpt_path = None if checkpoint is None else str(checkpoint)
            self.run_version = None if checkpoint is None else run_of(checkpoint, root)
        if self.subcommand != "fit":
            self.save_config_callback = None  # a run's folder keeps the configuration of its training
            if self.run_version is not None:
                self.run_version += f"/{self.subcommand}"

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self._get(self.config_init, "trainer")
        folder = None
        plugins = _as_list(config.get("plugins"))
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            kwargs["plugins"] = [*plugins, AtomicCheckpointIO()]
        if self.subcommand in READ_ONLY_SWITCHES:
            kwargs |= READ_ONLY_TRAINER
        else:
            root = Path(config["default_root_dir"])
            version = self.run_version or new_run(root)
            folder = root / version
            if config.get("logger") in (None, True):
                kwargs["logger"] = TensorBoardLogger(root.parent, name=root.name, version=version)
        hardware = {name: kwargs.get(name, config[name]) for name in ("accelerator", "devices", "num_nodes")}
        trainer = super().instantiate_trainer(**kwargs | available_accelerator(**hardware))
        assert isinstance(trainer, LgymTrainer)
        trainer.run_folder = folder
        return trainer

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Adds lgym's own callbacks, each unless the configuration already has one of its kind."""
        if self.subcommand in READ_ONLY_SWITCHES:
            return super()._instantiate_trainer(config, callbacks)
        ours: list[Callback] = [
            Provenance(),  # before the export, whose card says what it recorded
            AdapterExport(),
            RunSummary(),
            EpisodeLogger(),
            TokenTraceLogger(),
            TranscriptWriter(),
            DiskGuard(),
            GracefulShutdown(),
            CollapseGuard(act=False),
            FinalEvaluation(),
            RolloutNotes(),
        ]
        given = _as_list(config.get("callbacks"))
        checkpoints = [callback for callback in given if isinstance(callback, ModelCheckpoint)]
        save_between_rollouts(checkpoints)
        if config.get("max_time") is not None and not any(isinstance(callback, Timer) for callback in given):
            ours.append(TimeLimit(config["max_time"]))
            config = {**config, "max_time": None}
        if config.get("enable_progress_bar") is not False:
            ours.append(RolloutProgress())
        if config.get("enable_checkpointing") is not False:
            others = [callback for callback in given if callback not in checkpoints]
            config = {**config, "callbacks": others}
            ours += [BestCheckpoint(), *checkpoints, LastCheckpoint()]  # those behind it know of the best
        kinds = {type(callback) for callback in given}
        added = [callback for callback in ours if callback in checkpoints or type(callback) not in kinds]
        return super()._instantiate_trainer(config, callbacks + added)

    def after_fit(self) -> None:
        """Writes the run's report. Ends with status 1 where a guard ended the run."""
        logger, run = self.trainer.logger, self.trainer.run_folder
        has_events = isinstance(logger, TensorBoardLogger) and Path(logger.log_dir) == run
        if self.trainer.is_global_zero and run is not None and has_events and (run / RUN_FILE).exists():
            write_report([run], run / REPORT)
            say(f"Report, to open in a browser: {run / REPORT}")
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, CollapseGuard) and callback.stopped for callback in callbacks):
            distributed.leave()
            sys.exit(1)

    def new(self, **arguments: Any) -> None:
        """Hands over which settings were given."""
        parser, config = self._parser(self.subcommand), self.config[self.subcommand]
        named = {"model": {"class_path": config.model.class_path}, "data": {"env": config.data.env}}
        written, usual = (
            yaml.safe_load(parser.dump(settings, skip_none=True))
            for settings in (config, parser.parse_object(named))
        )
        given = changed(written, usual)
        self.trainer.given = {name: given[name] for name in ("trainer", "model", "data") if name in given}
        self.trainer.new(**arguments)

    def check(self, **arguments: Any) -> None:
        """Ends with status 1 where something would make training useless."""
        if any(finding.problem for finding in self.trainer.check(**arguments)):
            sys.exit(1)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def run(args: list[str] | None = None) -> None:
    """Runs a subcommand, of the program's arguments or of these."""
    follow_first_process()
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    refuse_duplicate_keys()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # files of this folder can be named in a YAML
    with errors_as_messages():
        if args is None:
            sys.argv[1:] = written_out(sys.argv[1:], LgymCLI.subcommands())
        LgymCLI(args if args is None else written_out(args, LgymCLI.subcommands()))
