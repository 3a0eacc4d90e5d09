"""What the base of all algorithms does by itself: the policy as it acts, imitation beside a loss, and going back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.replies import reply_batch
from lgym.batch import EpisodeStatistics
from lgym.modules import REINFORCE, TokenLoss
from lgym.modules.snapshot import all_finite, put_back, snapshot
from modules.test_grpo import rollout
from modules.test_text_algorithms import learner
from policies.test_generation import CONTEXTS


@pytest.mark.parametrize("training", [True, False])
def test_it_acts_without_dropout_and_gradient(training):
    """Catches playing with dropout on, where another policy samples than learns, and a module that stays as it acted."""
    module = learner(REINFORCE).train(training)
    with module.inference() as policy:
        assert not any(part.training for part in policy.modules())
        assert not torch.is_grad_enabled()
    assert all(part.training == training for part in module.policy.modules())
    assert torch.is_grad_enabled()
    with pytest.raises(KeyError), module.inference():
        raise KeyError
    assert module.training == training


def imitated():
    """Two turns of two tokens and one, of which the last token of the first was not chosen."""
    return reply_batch(CONTEXTS, [0, 1], [(70, 71), (72,)], masks=[(True, False), (True,)])


def nll(module) -> float:
    """The mean negative log-likelihood of the tokens 70 and 72, by the transformers model alone."""
    total = 0.0
    for row, token in ((0, 70), (1, 72)):
        logits = module.policy.llm.causal_lm(input_ids=torch.tensor([CONTEXTS[row].prompt_ids])).logits[0, -1]
        total -= float(logits.log_softmax(-1)[token].detach()) / 2
    return total


def test_imitation_is_the_mean_negative_log_likelihood():
    """Catches a wrong sign, a sum over tokens that nobody chose, and a scale that is lost."""
    module = learner(REINFORCE)
    assert float(module.imitation_loss(imitated()).detach()) == pytest.approx(nll(module), rel=1e-5)
    twice = replace(imitated(), scale=1.0)  # the sum of both in place of their mean
    assert float(module.imitation_loss(twice).detach()) == pytest.approx(2 * nll(module), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "imitates", "own", "imitation"),
    [
        (TokenLoss(sft_coef=0.3), True, 1.0, 0.3),
        (TokenLoss(sft_coef=0.3), False, 1.0, 0.0),  # there is nothing to imitate
        (TokenLoss(), True, 1.0, 0.0),
        (TokenLoss(sft_rollouts=1), True, 0.0, 1.0),
        (TokenLoss(sft_coef=0.3, sft_rollouts=1), True, 0.0, 1.0),  # at first alone, whatever the weight
        (TokenLoss(sft_rollouts=1), False, 1.0, 0.0),
    ],
)
def test_imitation_beside_the_loss(loss, imitates, own, imitation):
    """Catches a weight that is ignored, and imitation alone where it should be beside the loss or the other way round."""
    module = learner(REINFORCE, loss=loss, gamma=1.0)
    batch = module.prepare(rollout())
    plain = float(module.loss(batch)[0].detach())
    found, metrics = module._loss(replace(batch, imitated=imitated() if imitates else None))
    assert float(found.detach()) == pytest.approx(own * plain + imitation * nll(module), rel=1e-5)
    assert ("loss/sft" in metrics) == (imitation > 0)
    if imitation > 0:
        assert float(metrics["loss/sft"]) == pytest.approx(nll(module), rel=1e-5)
        assert not metrics["loss/sft"].requires_grad


def test_going_back_undoes_everything():
    """Catches weights, momentum or chance that stay as they have become; what is kept is not touched by what follows."""
    module = learner(REINFORCE)
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
            for one, other in zip(step(), weights, strict=True):
                assert torch.equal(one, other)


def test_one_weight_that_is_no_number_is_enough():
    """Catches a look at some of the weights, and a frozen one that counts."""
    module = learner(REINFORCE)
    assert all_finite(module)
    trained = [p for p in module.parameters() if p.requires_grad]
    with torch.no_grad():
        trained[-1].flatten()[-1] = torch.nan
    assert not all_finite(module)


def test_each_way_of_playing_has_its_own_evaluation(monkeypatch):
    """Catches episodes counted to the other mode, not counted, or counted again in the next evaluation."""
    module = learner(REINFORCE)
    logged = {}
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.update({name: float(value)}))
    for returns in ((1.0, 3.0), (5.0, 7.0)):  # means 2 and 6, then greedily less 10
        for stage, step in (("val", module.validation_step), ("test", module.test_step)):
            batches = [EpisodeStatistics(torch.tensor(returns) - shift, torch.ones(2)) for shift in (10.0, 0.0)]
            for number, batch in enumerate(batches):
                step(batch, 0, number)
            getattr(module, "on_validation_epoch_end" if stage == "val" else "on_test_epoch_end")()
            mean = sum(returns) / 2
            assert logged[f"{stage}_greedy/return_mean"] == mean - 10
            assert logged[f"{stage}_sampled/return_mean"] == mean
