"""`lgym new`: a complete YAML for an environment, with the numbers that random play decides and why."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from gymnasium.spaces import Discrete
from lightning.pytorch import Trainer
from torch import nn

from lgym.agents import GeneralAgent
from lgym.data import RolloutDataModule
from lgym.data.sizing import Choice
from lgym.modules import LLMLearner, PolicyLearner
from lgym.modules.actor_critic import ActorCritic
from lgym.modules.learning_rates import rates_of
from lgym.terminal import say
from lgym.types import ConfigError

COMMENTS = {
    "trainer.max_epochs": "rollouts",
    "trainer.check_val_every_n_epoch": "rollouts between evaluations",
    "model.init_args.llm.model": "a name, a Hub id, a folder or a .gguf file",
    "model.init_args.gae_lambda": "between one-step advantages (0) and whole returns (1)",
    "model.init_args.loss.entropy_coef": "more of it keeps exploring for longer",
    "model.init_args.loss.old_kl_coef": "more of it makes smaller steps",
    "data.eval_episodes": "of an evaluation, greedy and sampled each",
}
"""Comments by the key that they stand behind."""

AGENT = '''"""The words of {env}: what the model reads, and the answers that it may give."""

from typing import Any

from lgym.agents import GeneralAgent


class {name}(GeneralAgent):
    def __init__(self) -> None:
        super().__init__({settings})

    def format_observation(self, observation: Any) -> str:
        """The text of an observation, such as {example!r}."""
        return super().format_observation(observation)
'''


def write_new(
    trainer: Trainer,
    module: LLMLearner,
    data: RolloutDataModule,
    given: Mapping[str, Any],
    out: str | None,
    agent: str | None,
) -> None:
    """Write the YAML, and a file with an agent where one is wanted, and say what to do next.

    Args:
        trainer: of the settings given so far.
        module: the same.
        data: the same.
        given: these settings, nested as in a YAML, without those that are defaults.
        out: the YAML's file; by default the environment's name.
        agent: the agent's file, or `None` for none.

    Raises:
        ConfigError: for a file that is there already, and an agent's file that cannot be imported.
    """
    name = re.sub(r"\W+", "_", re.sub(r"-v\d+$", "", re.split("[/:]", data.env)[-1])).lower()
    path = Path(out or f"{name}.yaml")
    for file in [path] if agent is None else [path, Path(agent)]:
        if file.exists():
            raise ConfigError(f"{file} is there already: remove it, or give another --out or --agent.")
    if agent is not None and not re.fullmatch(r"[^\W\d]\w*\.py", agent):
        raise ConfigError(
            f"--agent is {agent}; it must be a Python file in this folder that can be imported, such as "
            f"{name}_agent.py."
        )
    choices = data.choose_settings(module, trainer.strategy.root_device)
    proposal = proposed(trainer, module, data, choices, name)
    model = {**given.get("model", {}), "class_path": proposal["model"]["class_path"]}
    settings = merged(proposal, {**given, "model": model})
    if agent is not None:
        words = name.split("_") if not name[0].isdigit() else ["env", *name.split("_")]
        class_name = "".join(word.capitalize() for word in words) + "Agent"
        settings["data"]["agent"] = {"class_path": f"{Path(agent).stem}.{class_name}"}
        Path(agent).write_text(agent_source(data, class_name), encoding="utf-8")
        say(f"Written: {agent}")
    reasons = {f"data.{choice.name}": choice.reason for choice in choices}
    if isinstance(module, ActorCritic):
        gamma = settings["model"]["init_args"]["gamma"]
        reasons["model.init_args.gamma"] = f"per turn: a reward counts for about {horizon(gamma)}"
    reasons |= {"data.agent.init_args.resolution": reasons.pop("data.resolution", "")}
    lines = [
        f"# {data.env}, as `lgym new` wrote it: every number may be changed.",
        f"#   lgym check --config {path}    what the model will see",
        f"#   lgym fit --config {path}      trains",
        *yaml_lines(settings, COMMENTS | reasons),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    say(f"Written: {path}\nNext: lgym check --config {path}, then lgym fit --config {path}")


def proposed(
    trainer: Trainer, module: LLMLearner, data: RolloutDataModule, choices: Sequence[Choice], name: str
) -> dict[str, Any]:
    """The settings that a run would have, nested as in a YAML, as far as people change them."""
    rates = rates_of(module.make_optimizer([nn.Parameter(torch.zeros(1))]))[0]
    loss: dict[str, Any] = {}
    if isinstance(module, PolicyLearner):
        keys = ("clip_low", "clip_high", "entropy_coef", "old_kl_coef")
        loss["loss"] = {key: getattr(module.loss_config, key) for key in keys}
    schedule = by_class("lgym.modules.schedules.WarmupCosine", warmup=2)
    critic: dict[str, Any] = {}
    if isinstance(module, ActorCritic):
        critic = {key: getattr(module, key) for key in ("gamma", "gae_lambda")}
        critic |= {choice.name: choice.value for choice in choices if choice.place == "model"}
        critic["critic"] = {key: getattr(module.critic, key) for key in ("value_coef", "value_warmup")}
    imitation: dict[str, Any] = {}
    if module.policy.generates_text:  # these are other ones beside an optimizer that is given
        imitation["sft"] = {"lr_scale": module.sft_lr_scale}
        if critic:
            critic["critic"]["value_lr_scale"] = module.value_lr_scale
    return {
        "seed_everything": data.seed,
        "trainer": {
            "default_root_dir": f"runs/{name}",
            "max_epochs": trainer.max_epochs,
            "check_val_every_n_epoch": trainer.check_val_every_n_epoch,
            "gradient_clip_val": trainer.gradient_clip_val,
        },
        "model": {
            "class_path": f"{type(module).__module__.rpartition('.')[0]}.{type(module).__name__}",
            "init_args": {
                "llm": {"model": module.llm_config.model},
                "optimizer": by_class("torch.optim.AdamW", lr=rates["lr"], weight_decay=0.0),
                "lr_scheduler": None if module.make_lr_scheduler is None else schedule,
                **critic,
                **imitation,
                **loss,
            },
        },
        "data": {
            "env": data.env,
            "agent": by_class(f"lgym.agents.{type(data.agent).__name__}"),
            "eval_episodes": data.eval_episodes,
            **chosen(choice for choice in choices if choice.place == "data"),
        },
    }


def horizon(gamma: float) -> str:
    """The turns that a discount looks ahead, in words."""
    return "any number of turns" if gamma == 1 else f"{1 / (1 - gamma):.0f} turns"


def chosen(choices: Iterable[Choice]) -> dict[str, Any]:
    """Settings of the data side that random play decided, nested as in a YAML."""
    values: dict[str, Any] = {}
    for choice in choices:
        if choice.name == "resolution":
            values["agent"] = by_class("lgym.agents.GeneralAgent", resolution=choice.value)
        else:
            values[choice.name] = yaml_value(choice.value)
    return values


def yaml_value(value: Any) -> Any:
    """A number as it is, and an object of the data side by its class."""
    if isinstance(value, list):
        return list(map(yaml_value, value))
    return value if isinstance(value, int) else by_class(f"lgym.data.{type(value).__name__}")


def by_class(class_path: str, **init_args: Any) -> dict[str, Any]:
    """An object of a YAML."""
    return {"class_path": class_path, "init_args": init_args} if init_args else {"class_path": class_path}


def changed(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings without those that are as usual; an object of another class is whole."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        old = usual.get(key)
        if not isinstance(value, Mapping) or not isinstance(old, Mapping):
            kept = value if value != old else None
        elif value.get("class_path") != old.get("class_path"):
            kept = value
        else:
            kept = changed(value, old) or None
        if kept is not None:
            result[key] = kept
    return result


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with others over them; an object of another class replaces the whole object."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            class_path = old.get("class_path")
            if value.get("class_path", class_path) == class_path:
                result[key] = merged(old, value)
    return result


def yaml_lines(settings: Mapping[str, Any], comments: Mapping[str, str], path: str = "") -> Iterator[str]:
    """Nested settings as lines of a YAML, with comments by key."""
    indent = "  " * path.count(".")
    for key, value in settings.items():
        comment = comments.get(f"{path}{key}")
        end = f" # {comment}" if comment else ""
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_yaml(key)}:{end}"
            yield from yaml_lines(value, comments, f"{path}{key}.")
        else:
            yield f"{indent}{_yaml(key)}: {_yaml(value)}{end}"


def _yaml(value: Any) -> str:
    """A value or a key in one line; a text that YAML would read as a number, or as yes or no, in quotes."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def agent_source(data: RolloutDataModule, name: str) -> str:
    """The source of an agent that reads as the general one does, to be changed."""
    agent = data.agent
    if not isinstance(agent, GeneralAgent):
        raise ConfigError(f"--agent writes what GeneralAgent says, and data.agent is {type(agent).__name__}.")
    env = data.make_env()
    example = agent.format_observation(env.reset(seed=data.seed)[0])
    env.close()
    settings: dict[str, Any] = {"task": agent.task_text} | agent.given_settings()
    if agent.actions and isinstance(env.action_space, Discrete):  # of others these are combinations
        settings["actions"] = list(agent.actions)
    arguments = "".join(f"\n            {key}={value!r}," for key, value in settings.items())
    return AGENT.format(env=data.env, name=name, settings=f"{arguments}\n        ", example=example)
