"""The environments of each stage: training's, evaluation's, which may differ from it, and test's, which may
differ from that."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
from torch.utils.data import DataLoader

from lgym import distributed
from lgym.agents import TextAgent
from lgym.data import validation
from lgym.data.dataset import EvaluationDataset, loader
from lgym.data.prompts.memory_prompt import summary
from lgym.data.rollout.collector import Collector
from lgym.data.rollout.env_runner import EnvRunner
from lgym.data.seeds import first_reset_seed, stream
from lgym.data.sharding import shard_range, store_from_all_ranks
from lgym.envs.make import make_env
from lgym.envs.workers import worker_envs
from lgym.rollout import Prompt

if TYPE_CHECKING:
    from lgym.data.datamodule import RolloutDataModule


def env_maker(data: RolloutDataModule, stage: str) -> Callable[[], gymnasium.Env]:
    """A function that makes an environment as a stage plays it: fit, validate, test or predict."""
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
    """Bind every agent to the environment of its stage; whether all of them offer candidates there."""
    stages = {
        id(agent): stage for stage, agent in reversed(data.agents.items())
    }  # the first of those that share one
    offers = [_bind(data, stage) for stage in sorted(stages.values(), key=list(data.agents).index)]
    return all(offers)


def _bind(data: RolloutDataModule, stage: str) -> bool:
    agent, env = data.agents[stage], env_maker(data, stage)()
    agent.bind(env)
    return validation.offers_candidates(agent, env, data.seed)


def make_collector(data: RolloutDataModule, stage: str, kept_transcripts: int) -> Collector:
    """The environments of a stage, with their reset seeds, in this process of the run."""
    make = env_maker(data, stage)
    first_episode, episodes = shard_range(data.eval_episodes)
    count = data.num_envs if stage == "fit" else min(data.num_envs, episodes)
    envs = (
        worker_envs(make, count, data.env_timeout) if data.subprocess_envs else [make() for _ in range(count)]
    )
    runners = [EnvRunner(env, data.episode_prompts(stage)) for env in envs]

    def prefetched() -> list[Prompt]:
        return data.prompts(data.prefetched_observations)

    if stage != "fit":  # the same episodes, however many processes share them
        seed = first_reset_seed(data.seed, stage) + first_episode
        return Collector(runners, seed, kept_transcripts, prefetched=prefetched)
    memory = data.episodic_memory
    store = None if memory is None else partial(memory.store, summarize=partial(summary, data.agents[stage]))
    return Collector(
        runners,
        first_reset_seed(data.seed, stage, distributed.rank(), distributed.world_size()),
        kept_transcripts,
        group_size=data.group_size,
        remember=store_from_all_ranks(store),
        dynamic_sampling_groups=data.dynamic_sampling_groups,
        prefetched=prefetched,
    )


def evaluation_loader(
    data: RolloutDataModule, stage: str, *, greedy: bool = False, outcome: Any = None
) -> DataLoader:
    """The episodes of an evaluation, sampled or greedy; `outcome` says what they come to, by default
    statistics."""
    dataset = EvaluationDataset(
        data.learner,
        lambda: make_collector(data, stage, 0 if outcome is None else data.eval_episodes),
        seed=None if greedy else stream(data.seed, stage, "actions", distributed.rank()),
        episodes=shard_range(data.eval_episodes)[1],
        progress=data.show_progress,
        outcome=outcome,
    )
    return loader(dataset)
