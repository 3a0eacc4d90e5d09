"""Trained agents that come with lgym: a folder each, with an adapter, its value head, YAML and card."""

from pathlib import Path

from lgym.types import ConfigError

ROOT = Path(__file__).parent
ADAPTER = "adapter_config.json"


def names() -> list[str]:
    """The agents."""
    return sorted(file.parent.name for file in ROOT.glob(f"*/{ADAPTER}"))


def adapter_folder(name: str) -> Path:
    """The folder of an adapter.

    Args:
        name: a folder, or an agent that comes with lgym.

    Raises:
        ConfigError: if it is neither.
    """
    folder = Path(name).expanduser()
    if (folder / ADAPTER).is_file():
        return folder
    if name in names():
        return ROOT / name
    raise ConfigError(
        f"llm.adapter {name} holds no adapter ({ADAPTER}): give the folder `adapter` of a run of `lgym fit`, "
        f"one of peft's, or an agent that comes with lgym ({', '.join(names()) or 'none'}). A model that was "
        "trained whole is `llm.model`."
    )


def agent_options(name: str) -> list[str]:
    """The options of a command line that has an agent play.

    Args:
        name: an agent that comes with lgym, or the folder of a run.

    Raises:
        ConfigError: if it is neither.
    """
    run = Path(name).expanduser()
    if (run / "config.yaml").is_file():
        adapter = adapter_folder(str(run / "adapter"))
        return ["--config", str(run / "config.yaml"), "--model.init_args.llm.adapter", str(adapter)]
    if name in names():
        return ["--config", str(ROOT / name / "config.yaml"), "--model.init_args.llm.adapter", name]
    raise ConfigError(
        f"{name} is no agent: give one that comes with lgym ({', '.join(names()) or 'none'}) or the folder "
        "of a run of `lgym fit`."
    )
