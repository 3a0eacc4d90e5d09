"""Help texts of the command line: what Lightning's parser says, in the words of a run of lgym."""

from argparse import SUPPRESS, ArgumentParser
from typing import Any

COMMANDS = {
    "fit": "Train the model: play rollouts and learn from each; ends with an evaluation.",
    "validate": "Evaluate a checkpoint on episodes of fixed seeds, greedy and sampled.",
    "test": "The same as validate, on other seeds: for the figure that is reported.",
    "predict": "Play episodes and write them, with every text, as JSON lines.",
    "check": "Look before training: what the model will see, problems with their remedy, the time a rollout "
    "takes. Within a minute.",
    "new": "Write a complete YAML for an environment: lgym new ENV_ID.",
    "play": "Watch the agent play in the terminal, or play yourself.",
    "serve": "Serve the agent over HTTP, with a page to watch and play in the browser.",
    "bench": "Run YAMLs with several seeds, and write their results as a table with pictures.",
    "export": "Write a trained agent as a merged model, a GGUF file or a GGUF adapter.",
    "push": "Upload a trained agent to the Hugging Face Hub, with its card.",
    "report": "Write runs as one HTML file, to look at and to show.",
    "sweep": "Search for better settings, by Optuna.",
}
"""Descriptions of the subcommands."""

GROUPS = {
    "trainer": "Length, device and folder of the run (settings of Lightning's Trainer)",
    "model": "The algorithm, and with it the language model and its policy; `lgym {command} --model.help "
    "lgym.modules.PPO` lists its settings",
    "data": "The environment, its agent, and how much is played between two updates",
}
"""Headings of the groups of options."""

OPTIONS = {
    "help": "Show this text and exit.",
    "config": "A YAML file with any of the options below, nested as their dots: --data.num_envs is "
    "`data: {num_envs: ...}`. Options behind it on the command line count more.",
    "print_config": "Print every setting with its value, as a YAML, and exit.",
    "seed_everything": "Seed of everything random: the same seed, settings and machine give the same run. "
    "True draws one.",
    "trainer.accelerator": "Device to compute on: auto, cpu, cuda or mps.",
    "trainer.devices": "Number of devices, each with a process of the run.",
    "trainer.precision": "Precision of the computation, such as bf16-true or 32-true; null is what the model "
    "is known to take.",
    "trainer.max_epochs": "Rollouts to play and learn from; -1 for any number.",
    "trainer.max_time": "Time after which the run ends, as DD:HH:MM:SS.",
    "trainer.check_val_every_n_epoch": "Evaluate after every so many rollouts.",
    "trainer.gradient_clip_val": "Norm to which a larger gradient is scaled down; null clips none.",
    "trainer.default_root_dir": "Folder of the runs; each gets a folder version_N in it.",
    "trainer.callbacks": "Callbacks beside lgym's own, by class_path, such as "
    "lightning.pytorch.callbacks.EarlyStopping.",
    "trainer.logger": "Where metrics go, by class_path; by default TensorBoard's files in the run's folder.",
    "trainer.strategy": "How several devices work together, such as ddp; `auto` chooses.",
    "trainer.num_nodes": "Number of machines.",
    "trainer.enable_progress_bar": "Show the progress bar.",
    "trainer.enable_checkpointing": "Write checkpoints/last.ckpt after every rollout.",
    "trainer.accumulate_grad_batches": "Minibatches whose gradients are added up for a step.",
    "trainer.profiler": "`phases` prints at the end what the run's time was spent on; `simple`, "
    "`advanced` and `pytorch` are Lightning's.",
    "trainer.deterministic": "Compute with operations that repeat bit for bit, where a GPU has others.",
    "trainer.log_every_n_steps": "How often metrics of single steps are logged.",
    "ckpt_path": "Checkpoint to go on from: a file, or `last` for the newest run's in "
    "trainer.default_root_dir. Null starts with the untrained model.",
}
"""Texts of options, in place of Lightning's."""

LIGHTNINGS = {"fit", "validate", "test", "predict"}  # subcommands that Lightning's docstrings describe
EPILOG = (
    "Every other option of Lightning's Trainer is taken too, as --trainer.NAME: "
    "https://lightning.ai/docs/pytorch/stable/common/trainer.html"
)


DESCRIPTION = (
    "Online reinforcement learning of language-model agents in Gymnasium environments. `lgym fit --config "
    "configs/blackjack.yaml` trains; `lgym check --config ...` says before what will come of it."
)


def describe_options(parser: Any, command: str) -> None:
    """Puts lgym's texts into the parser of a subcommand; Lightning's other options are left out of its
    help, and are taken as before."""
    parser.usage = f"lgym {command} [--config FILE] [--any.option VALUE ...]"
    parser.description = COMMANDS[command]
    parser.epilog = EPILOG
    for name, group in (parser.groups or {}).items():
        group.title = GROUPS.get(name, f"Options of {command}").format(command=command)
    own = set() if command in LIGHTNINGS else {"ckpt_path"}
    for action in parser._actions:
        name = action.dest
        if name in OPTIONS.keys() - own:
            action.help = OPTIONS[name]
        elif name.startswith("trainer") or name in ("weights_only", "data"):
            action.help = SUPPRESS


def print_commands() -> None:
    """Prints what the subcommands do."""
    parser = ArgumentParser("lgym", "lgym COMMAND [--config FILE] [--any.option VALUE ...]", DESCRIPTION)
    parser._actions[0].help = OPTIONS["help"]
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text)
    parser.epilog = "`lgym COMMAND --help` lists a command's options."
    parser.print_help()
