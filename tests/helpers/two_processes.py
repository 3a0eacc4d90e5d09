"""Two processes that learn together by DDP, without a command line, and the rollouts that they share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import set_forkserver_preload
from multiprocessing.forkserver import _forkserver
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from helpers import echo, tiny
from helpers.collectors import make_collector
from helpers.rollouts import candidate_learner, candidate_rollout, text_learner, text_rollout
from helpers.scripted import TextSpeaker
from lgym.data import DAgger
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.sft_sampler import SFTSampler
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.sharding import minibatches
from lgym.models import sharding
from lgym.models.llm import Layout
from lgym.models.prefix_sharing.frozen_blocks import blocks_of
from lgym.modules import A2C, GRPO, PPO, REINFORCE, RLOO, GiGPO, PolicyLearner
from lgym.rollout import Response, Rollout

ALGORITHMS: dict[str, tuple[type[PolicyLearner] | None, dict[str, Any]]] = {
    "candidates": (None, {"target_kl": None, "entropy_coef": 0.1, "old_kl_coef": 0.1}),
    "candidates, value clipped": (None, {"target_kl": None, "value_clip": 0.1, "whiten_advantages": False}),
    "GRPO": (GRPO, {}),
    "GRPO, mean over tokens": (GRPO, {"loss_aggregation": "token_mean", "entropy_coef": 0.1}),
    "RLOO": (RLOO, {}),
    "GiGPO": (GiGPO, {}),
    "REINFORCE": (REINFORCE, {}),
    "REINFORCE, not whitened": (REINFORCE, {"whiten_advantages": False}),
    "A2C": (A2C, {}),
    "PPO": (PPO, {}),
    "PPO, token level": (PPO, {"advantage_level": "token"}),
}
"""Algorithms with their settings; PPO between candidates without a class."""

LAYOUTS = get_args(Layout)


def learner(name: str) -> PolicyLearner:
    torch.manual_seed(0)
    algorithm, settings = ALGORITHMS[name]
    return candidate_learner(**settings) if algorithm is None else text_learner(algorithm, **settings)


def joint_rollout(module: PolicyLearner) -> Rollout:
    """Four streams, of which the last ends early: 11 turns."""
    first = text_rollout() if module.policy.generates_text else candidate_rollout(module)
    mask = first.mask.clone()
    mask[1, 2] = False
    second = {
        "rewards": first.rewards.flip(1) - 0.25,
        "episode_ids": first.episode_ids + 4,
        "reset_seeds": first.reset_seeds + 10,
        "mask": mask,
    }
    grids = {name: grid for name, grid in vars(first).items() if isinstance(grid, Tensor) and grid.dim() == 2}
    joined = {name: torch.cat([grid, second.get(name, grid)]) for name, grid in grids.items()}
    return with_episodes(replace(first, **joined))


def with_episodes(rollout: Rollout) -> Rollout:
    """The rollout with as many returns and lengths as it has episodes."""
    episodes = len(rollout.episode_ids[rollout.mask].unique())
    return replace(rollout, episode_returns=torch.zeros(episodes), episode_lengths=torch.ones(episodes))


def streams(rollout: Rollout, first: int, last: int) -> Rollout:
    """Some of a rollout's streams."""
    grids = {
        name: grid for name, grid in vars(rollout).items() if isinstance(grid, Tensor) and grid.dim() == 2
    }
    return with_episodes(replace(rollout, **{name: grid[first:last] for name, grid in grids.items()}))


class Loss(nn.Module):
    """The module that DDP wraps: from a minibatch to its loss."""

    def __init__(self, module: PolicyLearner) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Tensor:
        result = self.module.loss(batch)
        assert result is not None
        return result[0] + self.module.zero_of_all_parameters()


def gradients(
    name: str, size: int, *, rank: int | None = None, shards: bool = False, layout: Layout = "tree"
) -> list[Tensor]:
    """The gradients of one pass in minibatches of a size, averaged over these: over all streams, or a rank's
    half of them by DDP, which may hold its part of the frozen weights only."""
    module = learner(name)
    module.policy.llm.layout = layout
    rollout = joint_rollout(module)
    loss: nn.Module = Loss(module)
    if shards:
        sharding.exclude_from_ddp(loss, sharding.shard_frozen_weights(module.policy.llm, "cpu"))
    if rank is not None:
        rollout = streams(rollout, 2 * rank, 2 * rank + 2)
        loss = DistributedDataParallel(loss)
    batch, _ = module.prepare(rollout)
    parts = list(minibatches(batch, size, range(len(batch.prompt_chains))))
    trained = [p for p in module.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in trained]
    for part in parts:
        module.zero_grad()
        loss(part).backward()
        for total, parameter in zip(sums, trained, strict=True):
            total += torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / len(parts)
    return sums


def _run(rank: int, folder: str, work: Callable[[int], Any]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        torch.save(work(rank), Path(folder) / f"{rank}.pt")
    finally:
        distributed.destroy_process_group()


def in_two_processes(folder: Path, work: Callable[[int], Any]) -> list[Any]:
    """The results of a function of the rank in each of two processes that know of each other: tensors and
    plain data."""
    _forkserver._stop()  # type: ignore[attr-defined]  # one that other tests use has other modules
    set_forkserver_preload(["lgym.cli"])  # imported once for both processes
    try:
        multiprocessing.start_processes(_run, args=(str(folder), work), nprocs=2, start_method="forkserver")
    finally:
        _forkserver._stop()  # type: ignore[attr-defined]
        set_forkserver_preload(["__main__"])
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def all_gradients(rank: int) -> dict[str, dict[int, list[Tensor]]]:
    return {name: {size: gradients(name, size, rank=rank) for size in (1, 2, 100)} for name in ALGORITHMS}


def all_gradients_from_shards(rank: int) -> dict[str, list[Tensor]]:
    """By algorithm, and of one by layout."""
    found = {name: gradients(name, 2, rank=rank, shards=True) for name in ALGORITHMS}
    layouts = {layout: gradients("GRPO", 1, rank=rank, shards=True, layout=layout) for layout in LAYOUTS}
    return found | layouts


def bytes_of_blocks(rank: int) -> tuple[int, int]:
    """The bytes of the frozen weights of the blocks: of all of them, and of those that this process holds
    behind a pass with gradient."""
    module = learner("GRPO")
    llm = module.policy.llm
    frozen = [p for block in blocks_of(llm.causal_lm) for p in block.parameters() if not p.requires_grad]
    whole = sum(p.nbytes for p in frozen)
    sharding.shard_frozen_weights(llm, "cpu")
    states, _ = llm.hidden_states([(1, 2, 3, 4)], [4], row_length=8)
    states.sum().backward()
    shards = [p for block in blocks_of(llm.causal_lm) for p in block.parameters() if not p.requires_grad]
    return whole, sum(p.to_local().untyped_storage().nbytes() for p in shards)  # type: ignore[attr-defined]


class Repeater:
    """An expert that says the word that is shown, and counts how often it was asked."""

    asked = 0

    def act(self, observation: Any, info: Any) -> int:
        Repeater.asked += 1
        return int(observation)


def word_by_letter(prompt: Any, text: str, *_: Any) -> Response:
    """A token per letter: the words differ in length."""
    ids = tuple(tiny.tokenizer().encode(text))
    return Response(ids, (0.0,) * len(ids), True, text)


def shared_imitation(rank: int) -> dict[str, Any]:
    """What a process of two learns from four episodes of each, by demonstrations and an expert."""
    agent, make_env = echo.EchoAgent(), partial(echo.EchoEnv, turns=3)
    builder = PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048)
    prompts = partial(EpisodePrompts, agent, builder)
    buffer = DAgger(Repeater())
    buffer.attach(make_env, prompts(scores_candidates=False))
    demonstrations = [Demonstration(f"{word} {n}", word) for word in echo.WORDS for n in range(2)]
    sampler = SFTSampler(
        agent, prompts, word_by_letter, demonstrations, [buffer], size=2, scores_candidates=False
    )
    player = make_collector(
        [make_env()], agent, first_seed=100 + 10 * rank, prompts={"scores_candidates": False}
    )
    sampler.add_rollout(player.play(TextSpeaker(echo.WORDS), np.random.default_rng(rank), episodes=4))
    batches = list(sampler.demonstration_batches(np.random.default_rng(rank)))
    weights = [float(batch.loss_scale * batch.action_mask.sum()) for batch in batches]
    return {
        "turns": [prompt.observation_text for prompt, _ in sampler._turns],
        "episodes": len(buffer),
        "asked": Repeater.asked,
        "shares": [
            [batch.prompts[row].observation_text for row in batch.prompt_index.tolist()] if weight else []
            for batch, weight in zip(batches, weights, strict=True)
        ],
        "weights": weights,
        "drawn": len(sampler.sample(np.random.default_rng(rank)) or ()),
    }


def all_uneven_work(rank: int) -> dict[str, list[Tensor]]:
    return {layout: uneven_work(rank, layout=layout) for layout in LAYOUTS}


def uneven_work(rank: int, *, layout: Layout, shards: bool = True) -> list[Tensor]:
    """Hidden states of passes with and without gradient, and the gradients: of the first process
    none without, and of texts with a common beginning."""
    module = learner("GRPO")
    llm = module.policy.llm
    llm.layout = layout
    if shards:
        sharding.shard_frozen_weights(llm, "cpu")
    texts = [(1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 8)] if rank == 0 else [(1, 2, 3), (4, 5, 6)]
    results: list[Tensor] = []

    def run() -> Tensor:
        states, _ = llm.hidden_states(texts, list(map(len, texts)), row_length=8)
        results.append(states.detach().clone())
        return states

    for _ in range(2):
        with module.inference():
            for _ in range(3 * rank):
                run()
        run()[..., ::2].square().sum().backward()  # that of all is a constant, since states are normalized
    return results + [p.grad for p in llm.parameters() if p.requires_grad and p.grad is not None]
