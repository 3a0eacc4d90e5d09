"""Which rollouts only warm the value up: one counter, for every algorithm."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lgym.modules import PPO, TextPPO, TokenLoss


def learner(algorithm, sft_rollouts):
    settings = {"sft_rollouts": sft_rollouts} if algorithm is PPO else {"loss": TokenLoss(sft_rollouts=sft_rollouts)}
    module = algorithm(value_warmup=2, **settings)
    module._trainer = SimpleNamespace(current_epoch=0)
    return module


@pytest.mark.parametrize("algorithm", [PPO, TextPPO])
@pytest.mark.parametrize("sft_rollouts", [0, 3])
def test_the_warm_up_comes_behind_the_imitation(algorithm, sft_rollouts):
    """Both counted from 0, so that rollouts of imitation, in which no value learns, used the warm-up up."""
    module = learner(algorithm, sft_rollouts)
    warm = []
    for epoch in range(sft_rollouts, sft_rollouts + 4):
        module._trainer.current_epoch = epoch
        warm.append(module.warming_up)
    assert warm == [True, True, False, False]


@pytest.mark.parametrize("algorithm", [PPO, TextPPO])
def test_a_rollback_takes_the_warm_up_back_too(algorithm):
    """Weights from after rollout 1 have one of two rollouts of warm-up to go, whichever rollout the run is in."""
    module = learner(algorithm, 0)
    module._trainer.current_epoch, module.rollouts_undone = 6, 5
    assert module.warming_up
    module.rollouts_undone = 4
    assert not module.warming_up
