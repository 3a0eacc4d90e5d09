"""Short forms of the command line, written out."""

from collections.abc import Container, Sequence
from itertools import pairwise
from pathlib import Path

from lgym.cli.yaml_keys import yaml_of
from lgym.pretrained import agent_options

DEFAULT_MODEL = "lgym.modules.PPO"
PLAYING = {"validate", "test", "predict", "check", "play", "serve"}
"""Subcommands that take an agent by its name."""


def written_out(args: Sequence[str], subcommands: Container[str]) -> list[str]:
    """The command line with the environment of `lgym new ENV_ID` as an option, the agent of `lgym play NAME`
    as its YAML and adapter, and with PPO as the model where no class is given.

    (A default of the parser would leave PPO's settings behind where another class is named.)
    """
    words = list(args)
    if len(words) > 1 and words[0] == "new" and not words[1].startswith("-"):
        words.insert(1, "--data.env")
    if len(words) > 1 and words[0] in PLAYING and not words[1].startswith("-"):
        words[1:2] = agent_options(words[1])
    command = bool(words) and words[0] in subcommands and not {"-h", "--help"} & set(words)
    if command and not names_model(words):
        words.insert(1, f"--model={DEFAULT_MODEL}")
    return words


def names_model(words: Sequence[str]) -> bool:
    """Check if a command line, or a file that it names, has a class for the model."""
    named = [name.partition("=") for name in words]
    if any(name in ("--model", "--model.class_path") for name, _, _ in named):
        return True
    files = [value for name, _, value in named if name in ("--config", "-c") and value]
    files += [after for word, after in pairwise(words) if word in ("--config", "-c")]
    settings = [yaml_of(Path(file)) for file in files]
    return any("class_path" in (setting.get("model") or {}) for setting in settings)
