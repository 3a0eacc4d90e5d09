"""The base of all algorithms: the policy as it acts, supervised turns beside a loss, and the value's
warm-up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.prompts import response_batch
from helpers.rollouts import TEXT_PROMPTS, text_learner, text_rollout
from lgym.models import LLMConfig
from lgym.modules import A2C, DQN, GRPO, PPO, REINFORCE, CriticConfig, LLMLearner, LossConfig, SFTConfig
from lgym.policies import GenerationPolicy
from lgym.rollout import Response


@pytest.mark.parametrize("training", [True, False])
def test_inference_is_without_dropout_and_gradient(training):
    """Catches acting with dropout on, where another policy samples than learns, and a module that stays as it
    acted."""
    module = text_learner(REINFORCE).train(training)
    with module.inference() as policy:
        assert not any(part.training for part in policy.modules())
        assert not torch.is_grad_enabled()
    assert all(part.training == training for part in module.policy.modules())
    assert torch.is_grad_enabled()
    with pytest.raises(KeyError), module.inference():
        raise KeyError
    assert module.training == training


def demonstrated():
    """Two turns of two tokens and one, of which the last token of the first was not chosen."""
    first = Response((70, 71), (0.0, 0.0), True, action_mask=(True, False))
    return response_batch(TEXT_PROMPTS, [0, 1], [first, Response((72,), (0.0,), True)])


def nll(module) -> float:
    """The mean negative log-likelihood of the tokens 70 and 72, by the transformers model alone."""
    total = 0.0
    for prompt, token in zip(TEXT_PROMPTS, (70, 72), strict=False):
        logits = module.policy.llm.causal_lm(input_ids=torch.tensor([prompt.token_ids])).logits[0, -1]
        total -= float(logits.log_softmax(-1)[token].detach()) / 2
    return total


def test_the_sft_loss_is_the_mean_negative_log_likelihood():
    """Catches a wrong sign, a sum over tokens that nobody chose, and a scale that is lost."""
    module = text_learner(REINFORCE)
    assert float(module.sft_loss(demonstrated()).detach()) == pytest.approx(nll(module), rel=1e-5)
    twice = replace(demonstrated(), loss_scale=1.0)  # the sum of both in place of their mean
    assert float(module.sft_loss(twice).detach()) == pytest.approx(2 * nll(module), rel=1e-5)


@pytest.mark.parametrize(
    ("sft", "demonstrations", "weight", "sft_weight"),
    [
        (SFTConfig(coef=0.3), True, 1.0, 0.3),
        (SFTConfig(coef=0.3), False, 1.0, 0.0),
        (SFTConfig(), True, 1.0, 0.0),
        (SFTConfig(rollouts=1), True, 0.0, 1.0),
        (SFTConfig(coef=0.3, rollouts=1), True, 0.0, 1.0),  # at first alone, whatever the weight
    ],
)
def test_supervised_turns_beside_the_loss(sft, demonstrations, weight, sft_weight):
    """Catches a weight that is ignored, and demonstrations alone where they should be beside the loss or the
    reverse."""
    module = text_learner(REINFORCE, sft=sft, gamma=1.0)
    batch, _ = module.prepare(text_rollout())
    module.sft = SFTConfig()
    plain = float(module.loss(batch)[0].detach())
    module.sft = sft
    loss, metrics = module.loss(replace(batch, supervised=demonstrated() if demonstrations else None))
    assert float(loss.detach()) == pytest.approx(weight * plain + sft_weight * nll(module), rel=1e-5)
    assert ("loss/sft" in metrics) == (sft_weight > 0)
    if sft_weight > 0:
        assert float(metrics["loss/sft"]) == pytest.approx(nll(module), rel=1e-5)
        assert not metrics["loss/sft"].requires_grad


def test_nothing_is_learned_where_there_is_nothing_to_imitate_yet():
    """As before the first episode that is worth it: values and policy alike wait for the turns to imitate."""
    module = text_learner(REINFORCE, sft=SFTConfig(rollouts=1), gamma=1.0)
    batch, _ = module.prepare(text_rollout())
    assert module.loss(batch) == (None, {})


def warming_up_ppo(sft_rollouts):
    module = PPO(critic=CriticConfig(value_warmup=2), sft=SFTConfig(rollouts=sft_rollouts))
    module._trainer = SimpleNamespace(current_epoch=0)
    return module


@pytest.mark.parametrize("sft_rollouts", [0, 3])
def test_the_warm_up_follows_the_demonstrations(sft_rollouts):
    """Both counted from 0, so that rollouts of demonstrations, in which no value learns, used the warm-up
    up."""
    module = warming_up_ppo(sft_rollouts)
    warm = []
    for epoch in range(sft_rollouts, sft_rollouts + 4):
        module._trainer.current_epoch = epoch
        warm.append(module.warming_up)
    assert warm == [True, True, False, False]


@pytest.mark.parametrize(
    ("sft", "minibatches", "epochs"),
    [
        (SFTConfig(), 4, 16),  # a hundred answers are read until there are 64
        (SFTConfig(), 63, 2),
        (SFTConfig(), 1000, 2),
        (SFTConfig(rollouts=3), 4, 2),  # so many passes as the YAML says
        (SFTConfig(rollouts=3, epochs=5), 4, 5),
        (SFTConfig(epochs=1), 4, 1),
    ],
)
def test_few_demonstrations_are_read_often_where_nothing_says_how_long(sft, minibatches, epochs):
    assert PPO(sft=sft).sft_epochs(minibatches, update_epochs=2) == epochs


def test_demonstrations_without_a_weight_are_learned_from_first():
    """Catches demonstrations that nothing learns from, and a rollout of them beside a weight that is given."""

    def rollouts(sft: SFTConfig, demonstrations: list[object] | None) -> int:
        module = PPO(sft=sft)
        assert module.sft_rollouts == (sft.rollouts or 0)
        module._trainer = SimpleNamespace(datamodule=SimpleNamespace(demonstrations=demonstrations))
        assert module.uses_sft(0) == (module.sft_rollouts > 0 or sft.coef > 0)
        return module.sft_rollouts

    assert rollouts(SFTConfig(), [object()]) == 1
    assert rollouts(SFTConfig(), None) == 0
    assert rollouts(SFTConfig(coef=0.1), [object()]) == 0
    assert rollouts(SFTConfig(rollouts=0), [object()]) == 0
    assert rollouts(SFTConfig(rollouts=2), [object()]) == 2


@pytest.mark.parametrize(
    ("module", "rate", "sft_scale"),
    [
        (PPO(), 8e-4, 1.0),
        (GRPO(), 8e-4, 1.0),
        (DQN(), 8e-4, 1.0),
        (REINFORCE(), 8e-4, 1.0),
        (A2C(), 8e-4, 1.0),
        (GRPO(policy=GenerationPolicy()), 1e-4, 8.0),
        (REINFORCE(policy=GenerationPolicy()), 1e-4, 8.0),
        (REINFORCE(optimizer=partial(torch.optim.SGD, lr=0.1)), 0.1, 1.0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, LLMLearner) else None,
)
def test_every_algorithm_has_a_usual_optimizer(module, rate, sft_scale):
    """Catches a rate that falls with an algorithm and not with what is learned: choices or text."""
    assert module.make_optimizer([torch.zeros(1)]).defaults["lr"] == rate
    assert module.sft_lr_scale == sft_scale
    assert module.policy.scores_candidates != module.policy.generates_text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"sft": SFTConfig(rollouts=0)}, False),
        ({"llm": LLMConfig(adapter="blackjack")}, False),
        ({"policy": GenerationPolicy()}, False),
    ],
    ids=["new", "given", "trained", "text"],
)
def test_a_start_that_favors_no_action_is_for_a_model_that_is_new(settings, expected):
    """Catches an adapter that is gone on from, and first of all forgets what it learned."""
    assert ("demonstrations" in PPO(**settings).open_settings) == expected


def test_a_rollback_takes_the_warm_up_back_too():
    """Weights from after rollout 1 have one of two rollouts of warm-up to go, whichever rollout the run is
    in."""
    module = warming_up_ppo(0)
    module._trainer.current_epoch, module.rollouts_undone = 6, 5
    assert module.warming_up
    module.rollouts_undone = 4
    assert not module.warming_up


@pytest.mark.parametrize(
    ("settings", "demonstrations", "alone"),
    [
        ({}, None, False),
        ({}, ["some"], True),
        ({"rollouts": 0}, ["some"], False),
        ({"coef": 1.0}, ["some"], False),
    ],
)
def test_passes_of_imitation_need_a_rollout_that_imitates_alone(settings, demonstrations, alone):
    """Catches a number of passes that nothing makes, and that nobody is told of."""
    module = PPO(sft=SFTConfig(epochs=2, **settings))
    data = SimpleNamespace(demonstrations=demonstrations, update_epochs=4)
    module.trainer = SimpleNamespace(datamodule=data)
    if alone:
        module.setup("fit")
        return
    with pytest.raises(ValueError, match="sft.epochs is 2, and no rollout .* give data.demonstrations"):
        module.setup("fit")
    module.setup("validate")


@pytest.mark.parametrize("algorithm", [A2C, REINFORCE])
def test_several_passes_need_clipping(algorithm):
    trainer = SimpleNamespace(datamodule=SimpleNamespace(update_epochs=2))
    module, clipped = algorithm(), algorithm(loss=LossConfig())
    module.trainer = clipped.trainer = trainer
    with pytest.raises(ValueError, match="update_epochs is 2"):
        module.setup("fit")
    clipped.setup("fit")
