"""Two processes that learn together by DDP, without a command line, and the rollouts that they share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from helpers import tiny
from lgym.batch import Rollout
from lgym.data.sharding import minibatches
from lgym.models import LLMConfig
from lgym.modules import A2C, GRPO, PPO, REINFORCE, RLOO, GiGPO, TextPPO, TokenLoss
from lgym.modules.base import PolicyLearner
from lgym.policies import CandidatePolicy, GenerationPolicy
from modules import test_grpo, test_ppo

ALGORITHMS: dict[str, Callable[..., PolicyLearner]] = {
    "PPO": partial(PPO, target_kl=None, value_warmup=0, detach_value=False, entropy_coef=0.1, old_kl_coef=0.1),
    "PPO, value clipped": partial(PPO, target_kl=None, value_warmup=0, value_clip=0.1, whiten_advantages=False),
    "GRPO": GRPO,
    "GRPO, every token alike": partial(GRPO, loss=TokenLoss(normalise_by="tokens", entropy_coef=0.1)),
    "RLOO": RLOO,
    "GiGPO": GiGPO,
    "REINFORCE": REINFORCE,
    "REINFORCE, not whitened": partial(REINFORCE, whiten_advantages=False),
    "A2C": A2C,
    "TextPPO": TextPPO,
    "TextPPO, token by token": partial(TextPPO, credit="token"),
}


def learner(name: str) -> PolicyLearner:
    torch.manual_seed(0)
    make = ALGORITHMS[name]
    policy = CandidatePolicy() if name.startswith("PPO") else GenerationPolicy(max_new_tokens=5)
    policy.bind(tiny.llm(dtype=torch.float64))
    module = make(llm=LLMConfig(model="tiny"), policy=policy)
    module.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    return module


def rollout(module: PolicyLearner) -> Rollout:
    """Four streams, of which the last ends early: 11 turns."""
    first = test_ppo.rollout(module) if isinstance(module, PPO) else test_grpo.rollout()
    mask = first.mask.clone()
    mask[1, 2] = False
    other = {
        "rewards": first.rewards.flip(1) - 0.25,
        "episode_ids": first.episode_ids + 4,
        "reset_seeds": first.reset_seeds + 10,
        "mask": mask,
    }
    joined = {
        name: torch.cat([own, other.get(name, own)])
        for name, own in vars(first).items()
        if isinstance(own, Tensor) and own.dim() == 2 and name != "candidate_logprobs"
    }
    return with_its_episodes(replace(first, **joined))


def with_its_episodes(played: Rollout) -> Rollout:
    """With as many returns and lengths as it has episodes."""
    episodes = len(played.episode_ids[played.mask].unique())
    return replace(played, episode_returns=torch.zeros(episodes), episode_lengths=torch.ones(episodes))


def streams(played: Rollout, first: int, last: int) -> Rollout:
    """Some of a rollout's environments."""
    part = {
        name: own[first:last]
        for name, own in vars(played).items()
        if isinstance(own, Tensor) and own.dim() == 2 and name != "candidate_logprobs"
    }
    return with_its_episodes(replace(played, **part))


class Loss(nn.Module):
    """What DDP wraps: from a minibatch to its loss."""

    def __init__(self, module: PolicyLearner) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Tensor:
        result = self.module.loss(batch)
        assert result is not None
        return result[0] + self.module.nothing()


def gradients(name: str, size: int, *, rank: int | None = None) -> list[Tensor]:
    """Of one pass in minibatches of a size, averaged over them: over all streams, or a rank's half of them by DDP."""
    module = learner(name)
    played = rollout(module)
    loss: nn.Module = Loss(module)
    if rank is not None:
        played = streams(played, 2 * rank, 2 * rank + 2)
        loss = DistributedDataParallel(loss)
    batch = module.prepare(played)
    parts = list(minibatches(batch, size, range(len(batch.bundles))))
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
    """What a function of the rank gives in each of two processes that know of each other: tensors and plain data."""
    multiprocessing.spawn(_run, args=(str(folder), work), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def all_gradients(rank: int) -> dict[str, dict[int, list[Tensor]]]:
    return {name: {size: gradients(name, size, rank=rank) for size in (1, 2, 100)} for name in ALGORITHMS}
