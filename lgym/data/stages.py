"""What each stage plays: training its own environment, evaluation one that may differ from it, and test one that may differ
from that."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

import gymnasium

from lgym.agents import TextAgent
from lgym.data import validation
from lgym.envs.make import make_env

if TYPE_CHECKING:
    from lgym.data.datamodule import RolloutDataModule


def env_maker(data: RolloutDataModule, stage: str) -> Callable[[], gymnasium.Env]:
    """Makes an environment as a stage plays it: fit, validate, test or predict."""
    kwargs = data.env_kwargs or {}
    if stage != "fit":
        kwargs = kwargs | (data.eval_env_kwargs or {})
    if stage == "test":
        kwargs = kwargs | (data.test_env_kwargs or {})
    return partial(make_env, data.env, kwargs, data.max_episode_steps, data.wrappers)


def agents_of(data: RolloutDataModule) -> dict[str, TextAgent]:
    """The words of each stage: a copy of the agent wherever the environment differs."""
    evaluated = deepcopy(data.agent) if data.eval_env_kwargs else data.agent
    tested = deepcopy(data.agent) if data.test_env_kwargs else evaluated
    return {"fit": data.agent, "validate": evaluated, "predict": evaluated, "test": tested}


def bind_agents(data: RolloutDataModule) -> bool:
    """Shows every agent the environment of its stage; whether all of them offer candidates there."""
    stages = {id(agent): stage for stage, agent in reversed(data.agents.items())}  # of those that share one, the first
    offers = [_bind(data, stage) for stage in sorted(stages.values(), key=list(data.agents).index)]
    return all(offers)


def _bind(data: RolloutDataModule, stage: str) -> bool:
    agent, env = data.agents[stage], env_maker(data, stage)()
    agent.bind(env)
    return validation.offers_candidates(agent, env, data.seed)
