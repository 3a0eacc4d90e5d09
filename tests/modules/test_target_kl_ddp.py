"""`target_kl` with several processes: they brake together, by the mean over all their turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.rollouts import candidate_learner, candidate_rollout, perturb
from helpers.two_processes import in_two_processes, streams
from lgym import distributed
from lgym.batch import ResponseBatch
from lgym.functional import categorical_kl
from lgym.modules import PPO


def divergence(module: PPO, batch: ResponseBatch) -> float:
    """The mean KL(pi_old || pi) of this process's turns."""
    with torch.no_grad():
        logprobs, _ = module.policy(batch.prompts)
    return float(categorical_kl(batch.old_candidate_logprobs, logprobs)[batch.prompt_index].mean())


def brakes(module: PPO, batch: ResponseBatch) -> bool:
    """Whether advantages move nothing any more."""
    results = [module.loss(replace(batch, advantages=factor * batch.advantages)) for factor in (1.0, -3.0)]
    if any(loss is None for loss, _ in results):
        return True
    first, second = (float(result[0].detach()) for result in results)
    return first == second


def decision(rank: int, factor: float) -> dict[str, float | bool]:
    """A process plays three turns, or two; both move alike, and brake at so many times their mean
    divergence."""
    torch.manual_seed(0)
    module = candidate_learner(target_kl=None, gamma=1.0, gae_lambda=1.0, whiten_advantages=False)
    batch, _ = module.prepare(streams(candidate_rollout(module), rank, rank + 1))
    perturb(module, 0.05)
    own_kl = divergence(module, batch)
    gathered = distributed.all_gather_object((own_kl, len(batch)))
    target_kl = factor * sum(kl * turns for kl, turns in gathered) / sum(turns for _, turns in gathered)
    module.loss_config = replace(module.loss_config, target_kl=target_kl)
    return {"alone": own_kl > target_kl, "together": brakes(module, batch), "turns": len(batch)}


def decisions(rank: int) -> list[dict[str, float | bool]]:
    return [decision(rank, factor) for factor in (0.97, 1.03)]


@pytest.mark.slow
def test_two_ranks_brake_together(tmp_path):
    """Catches a process that decides by its own turns: it would stop pushing while the other goes on, or wait
    for it for ever. Each alone would decide otherwise than the other; a little below their mean both brake,
    and above it neither."""
    below, above = zip(*in_two_processes(tmp_path, decisions), strict=True)
    for first, second in (below, above):
        assert (first["turns"], second["turns"]) == (3, 2)
        assert first["alone"] != second["alone"]
    assert [rank["together"] for rank in below] == [True, True]
    assert [rank["together"] for rank in above] == [False, False]
