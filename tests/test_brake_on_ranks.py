"""`target_kl` with several processes: they brake together, by the mean over all their turns."""

from __future__ import annotations

from dataclasses import replace

import torch

from helpers import two_ranks
from lgym import distributed
from lgym.batch import TurnBatch
from lgym.functional import categorical_kl
from lgym.modules import PPO
from modules import test_ppo


def divergence(module: PPO, batch: TurnBatch) -> float:
    """The mean KL(pi_old || pi) of this process's turns."""
    with torch.no_grad():
        logprobs, _ = module.policy(batch.contexts)
    return float(categorical_kl(batch.old_logprobs, logprobs)[batch.rows].mean())


def brakes(module: PPO, batch: TurnBatch) -> bool:
    """Whether what went well and badly moves nothing any more."""
    results = [module.loss(replace(batch, advantages=factor * batch.advantages)) for factor in (1.0, -3.0)]
    if any(result is None for result in results):
        return True
    first, second = (float(result[0].detach()) for result in results)
    return first == second


def decision(rank: int, factor: float) -> dict[str, float | bool]:
    """A process plays three turns, or two; both move alike, and brake at so many times their mean divergence."""
    torch.manual_seed(0)
    module = test_ppo.learner(target_kl=None, gamma=1.0, gae_lambda=1.0, whiten_advantages=False)
    batch = module.prepare(two_ranks.streams(test_ppo.rollout(module), rank, rank + 1))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.05 * torch.randn_like(parameter))
    own = divergence(module, batch)
    known = distributed.all_gather_object((own, len(batch)))
    module.target_kl = factor * sum(kl * turns for kl, turns in known) / sum(turns for _, turns in known)
    return {"alone": own > module.target_kl, "together": brakes(module, batch), "turns": len(batch)}


def decisions(rank: int) -> list[dict[str, float | bool]]:
    return [decision(rank, factor) for factor in (0.97, 1.03)]


def test_two_ranks_brake_together(tmp_path):
    """Catches a process that decides by its own turns: it would stop pushing while the other goes on, or wait for it for
    ever. Each alone would decide otherwise than the other; a little below their mean both brake, and above it neither."""
    below, above = zip(*two_ranks.in_two_processes(tmp_path, decisions), strict=True)
    for first, second in (below, above):
        assert (first["turns"], second["turns"]) == (3, 2)
        assert first["alone"] != second["alone"]
    assert [own["together"] for own in below] == [True, True]
    assert [own["together"] for own in above] == [False, False]
