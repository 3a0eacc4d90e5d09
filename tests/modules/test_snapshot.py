"""Snapshots of a run's learning in memory."""

from __future__ import annotations

import torch

from helpers.rollouts import candidate_learner, text_learner
from lgym.modules import DQN, REINFORCE
from lgym.modules.snapshot import all_finite, put_back, snapshot
from lgym.policies import CandidatePolicy


def test_going_back_undoes_everything():
    """Catches weights, momentum or random states that stay as they have become; the snapshot is not touched
    by what follows."""
    module = text_learner(REINFORCE)
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.1)

    def step() -> list[torch.Tensor]:
        optimizer.zero_grad()
        sum((p - torch.rand_like(p)).square().sum() for p in trained).backward()
        optimizer.step()
        return [p.detach().clone() for p in trained]

    step()
    saved = snapshot(module, [optimizer])
    expected = [step(), step()]
    for _ in range(2):
        put_back(module, [optimizer], saved)
        for weights in expected:
            for found, weight in zip(step(), weights, strict=True):
                assert torch.equal(found, weight)


def test_a_target_network_goes_back_too():
    """Catches targets that still come from weights that the run has gone back behind, or are no numbers."""
    module = DQN(policy=CandidatePolicy(), polyak=0.5)
    module.policy.bind(candidate_learner().policy.llm)
    saved = snapshot(module, [])
    with torch.no_grad():
        for weight in module.parameters():
            weight.fill_(torch.nan)
    module.target.follow(0.5)
    put_back(module, [], saved)
    assert all(weight.isfinite().all() for weight in module.target.state_dict().values())


def test_one_weight_that_is_not_finite_is_enough():
    """Catches a look at some of the weights alone."""
    module = text_learner(REINFORCE)
    assert all_finite(module)
    trained = [p for p in module.parameters() if p.requires_grad]
    with torch.no_grad():
        trained[-1].flatten()[-1] = torch.nan
    assert not all_finite(module)
