"""Runners and collectors of environments with the tiny tokenizer, and what they record in plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import gymnasium
import torch

from helpers import tiny
from lgym.agents import TextAgent
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.rollout.collector import Collector
from lgym.data.rollout.env_runner import EnvRunner
from lgym.envs.workers import WorkerEnv
from lgym.rollout import Rollout

Env = gymnasium.Env | WorkerEnv


def make_runner(
    env: Env, agent: TextAgent, builder: PromptBuilder | None = None, **settings: Any
) -> EnvRunner:
    """A runner with the settings of `EpisodePrompts`."""
    builder = builder or PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048)
    return EnvRunner(env, EpisodePrompts(agent, builder, **settings))


def make_collector(
    envs: Iterable[Env],
    agent: TextAgent,
    builder: PromptBuilder | None = None,
    *,
    first_seed: int = 100,
    prompts: dict[str, Any] | None = None,
    **settings: Any,
) -> Collector:
    """A collector with settings of its own and of its `prompts`; its runners share a prompt builder."""
    builder = builder or PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048)
    runners = [make_runner(env, agent, builder, **(prompts or {})) for env in envs]
    return Collector(runners, first_seed, **settings)


def choices_of(rollout: Rollout) -> torch.Tensor:
    """[E, N] the candidate chosen in each turn."""
    return torch.tensor([response.choice for response in rollout.responses])[rollout.response_index]


def plain_values(rollout: Rollout) -> dict[str, Any]:
    """All of a rollout but its time, in values that can be compared."""
    columns = {
        field.name: getattr(rollout, field.name) for field in fields(rollout) if field.name != "seconds"
    }
    columns["prompts"] = [(p.observation_text, p.candidates, p.token_ids) for p in rollout.prompts]
    columns["responses"] = [vars(response) for response in rollout.responses]
    if rollout.latest_episodes is not None:
        columns["latest_episodes"] = torch.stack(
            [column for column in vars(rollout.latest_episodes).values() if column is not None]
        ).nan_to_num(-1)
    columns["episode_successes"] = rollout.episode_successes.nan_to_num(-1)
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in columns.items()
    }
