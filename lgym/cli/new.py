"""`lgym new`: a complete YAML for an environment, with the numbers that random play decides and why."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Discrete
from lightning.pytorch import Trainer
from torch import nn

from lgym.agents import GeneralAgent
from lgym.data import RolloutDataModule
from lgym.data.sizing import Choice
from lgym.modules import PolicyLearner
from lgym.modules.actor_critic import ActorCritic
from lgym.modules.learning_rates import rates_of
from lgym.terminal import say
from lgym.types import ConfigError

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
    trainer: Trainer, module: PolicyLearner, data: RolloutDataModule, out: str | None, agent: str | None
) -> None:
    """Write the YAML, and a file with an agent where one is wanted, and say what to do next.

    Args:
        trainer: of the settings given so far.
        module: the same.
        data: the same.
        out: the YAML's file; by default the environment's name.
        agent: the agent's file, or `None` for none.

    Raises:
        ConfigError: for a file that is there already, and an agent's file that cannot be imported.
    """
    name = re.sub(r"\W+", "_", re.sub(r"-v\d+$", "", data.env.rpartition("/")[2].rpartition(":")[2])).lower()
    path = Path(out or f"{name}.yaml")
    for file in filter(None, (path, agent and Path(agent))):
        if file.exists():
            raise ConfigError(f"{file} is there already: remove it, or give another --out or --agent.")
    if agent is not None and (Path(agent).suffix != ".py" or not Path(agent).stem.isidentifier()):
        raise ConfigError(f"--agent is {agent}; it must be a Python file, such as {name}_agent.py.")
    choices = data.choose_settings(module, trainer.strategy.root_device)
    agent_class = agent and "".join(word.capitalize() for word in name.split("_")) + "Agent"
    lines = [
        f"# {data.env}, as `lgym new` wrote it: every number may be changed.",
        f"#   lgym check --config {path}    what the model will see",
        f"#   lgym fit --config {path}      trains",
        *trainer_lines(trainer, name),
        *model_lines(module, trainer.max_epochs or 0),
        *data_lines(data, choices, f"{Path(agent).stem}.{agent_class}" if agent else None),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    say(f"Written: {path}")
    if agent is not None:
        Path(agent).write_text(agent_source(data, str(agent_class)), encoding="utf-8")
        say(f"Written: {agent}")
    say(f"Next: lgym check --config {path}, then lgym fit --config {path}")


def trainer_lines(trainer: Trainer, name: str) -> list[str]:
    """The part of the trainer."""
    return [
        "seed_everything: 0",
        "trainer:",
        f"  default_root_dir: runs/{name}",
        f"  max_epochs: {trainer.max_epochs} # rollouts",
        f"  check_val_every_n_epoch: {trainer.check_val_every_n_epoch} # rollouts between evaluations",
        f"  gradient_clip_val: {trainer.gradient_clip_val}",
    ]


def model_lines(module: PolicyLearner, rollouts: int) -> Iterator[str]:
    """The part of the model: the algorithm's settings as they are."""
    rates = rates_of(module.make_optimizer([nn.Parameter(torch.zeros(1))]))[0]
    loss = module.loss_config
    yield "model:"
    yield f"  class_path: {type(module).__module__.rpartition('.')[0]}.{type(module).__name__}"
    yield "  init_args:"
    yield "    llm:"
    yield f"      model: {module.llm_config.model} # a name, a Hub id, a folder or a .gguf file"
    yield "    optimizer:"
    yield "      class_path: torch.optim.AdamW"
    yield f"      init_args: {{lr: {rates['lr']:.1e}, weight_decay: 0.0}}"
    yield "    lr_scheduler:"
    yield "      class_path: lgym.modules.schedules.WarmupCosine"
    yield f"      init_args: {{warmup: {min(2, max(0, rollouts - 1))}, total: {max(1, rollouts)}}}"
    if isinstance(module, ActorCritic):
        yield f"    gamma: {module.gamma} # per turn: a reward counts for about {horizon(module.gamma)}"
        yield f"    gae_lambda: {module.gae_lambda}"
        critic = module.critic
        yield f"    critic: {{value_coef: {critic.value_coef}, value_warmup: {critic.value_warmup}}}"
    yield "    loss:"
    for setting, why in (
        ("clip_low", ""),
        ("clip_high", ""),
        ("entropy_coef", " # more of it keeps exploring for longer"),
        ("old_kl_coef", " # more of it makes smaller steps"),
    ):
        value = getattr(loss, setting)
        yield f"      {setting}: {'null' if value is None else value}{why}"


def horizon(gamma: float) -> str:
    """The turns that a discount looks ahead, in words."""
    return "any number of turns" if gamma == 1 else f"{1 / (1 - gamma):.0f} turns"


def data_lines(data: RolloutDataModule, choices: Sequence[Choice], agent: str | None) -> Iterator[str]:
    """The part of the environment, with what random play decided."""
    decided = {choice.name: choice for choice in choices}
    resolution = decided.pop("resolution", None)
    yield "data:"
    yield f"  env: {data.env}"
    if data.env_kwargs:
        yield f"  env_kwargs: {json.dumps(data.env_kwargs)}"
    yield "  agent:"
    yield f"    class_path: {agent or f'lgym.agents.{type(data.agent).__name__}'}"
    if resolution is not None and agent is None:
        yield "    init_args:"
        yield f"      resolution: {json.dumps(resolution.value)} # {resolution.reason}"
    for name, choice in decided.items():
        if isinstance(choice.value, int):
            yield f"  {name}: {choice.value} # {choice.reason}"
        else:
            yield f"  {name}: # {choice.reason}"
            yield f"    class_path: lgym.data.{type(choice.value).__name__}"
    yield f"  eval_episodes: {data.eval_episodes} # of an evaluation, greedy and sampled each"


def agent_source(data: RolloutDataModule, name: str) -> str:
    """The source of an agent that reads as the general one does, to be changed."""
    agent = data.agent
    assert isinstance(agent, GeneralAgent)
    env = data.make_env()
    example = agent.format_observation(env.reset(seed=data.seed)[0])
    env.close()
    settings: dict[str, Any] = {"task": agent.task_text}
    if agent.actions and isinstance(env.action_space, Discrete):  # of others these are combinations
        settings["actions"] = list(agent.actions)
    if agent.observation_settings.resolution is not None:
        settings["resolution"] = agent.observation_settings.resolution
    arguments = "".join(f"\n            {key}={value!r}," for key, value in settings.items())
    return AGENT.format(env=data.env, name=name, settings=f"{arguments}\n        ", example=example)
