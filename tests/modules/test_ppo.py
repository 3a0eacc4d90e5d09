"""PPO between candidates on the tiny model: the batch it prepares, its loss, and an effect of each
setting."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers import tiny
from helpers.rollouts import (
    CANDIDATE_PROMPTS,
    candidate_learner,
    candidate_rollout,
    gradients_of,
    make_learner,
    perturb,
    shift,
)
from lgym.functional import categorical_kl, value_loss
from lgym.models import LLMConfig
from lgym.modules import A2C, PPO, REINFORCE, CriticConfig, LossConfig
from lgym.policies import CandidatePolicy, GenerationPolicy


def prepared(module):
    return module.prepare(candidate_rollout(module))[0]


def test_prepare_sorts_turns_by_prompt_and_drops_idle_ones():
    """Advantages that land on the wrong turns teach the wrong lesson (SkyRL#1507)."""
    module = candidate_learner(gamma=1.0, gae_lambda=1.0, whiten_advantages=False)
    rollout = candidate_rollout(module)
    batch, metrics = module.prepare(rollout)
    assert batch.prompt_index.tolist() == [0, 0, 1, 1, 2]
    assert batch.choices.tolist() == [0, 1, 2, 0, 1]
    # lambda = gamma = 1: returns are the rewards still to come in the episode; their variance is
    # 10 / 5 - (4 / 5)^2 = 1.36.
    torch.testing.assert_close(batch.returns[:, 0], torch.tensor([1.0, -1.0, 0.0, 2.0, 2.0]))
    torch.testing.assert_close(
        batch.advantages,
        (batch.returns - rollout.prompt_values[batch.prompt_index][:, None] - metrics["value/offset"])
        / 1.36**0.5,
    )
    assert batch.loss_scale == 1 / 5


def test_advantages_are_whitened_over_the_whole_rollout():
    """TWOSOME normalized over minibatches of 4, whose means are noise."""
    batch = prepared(candidate_learner(whiten_advantages=True))
    assert float(batch.advantages.mean()) == pytest.approx(0.0, abs=1e-7)
    assert float(batch.advantages.std(correction=0)) == pytest.approx(1.0, abs=1e-6)


def test_minibatches_add_up_to_the_whole():
    """One pass in three minibatches must have the gradient of the pass in one, times their number."""
    module = candidate_learner(target_kl=None)
    batch = prepared(module)
    minibatches = list(batch.minibatches(1, order=[2, 0, 1]))
    assert [len(part) for part in minibatches] == [1, 2, 2]
    parts = [gradients_of(module, part) for part in minibatches]
    for name, gradient in gradients_of(module, batch).items():
        torch.testing.assert_close(sum(part[name] for part in parts) / 3, gradient, rtol=1e-5, atol=1e-7)


def test_the_first_loss_is_minus_the_mean_advantage():
    """Before the first step the ratio is 1 and nothing is clipped."""
    module = candidate_learner(value_coef=0.0, entropy_coef=0.0, whiten_advantages=False)
    batch = replace(prepared(module), metrics={})
    loss, metrics = module.loss(batch)
    assert float(loss.detach()) == pytest.approx(-float(batch.advantages.mean()), abs=1e-5)
    assert float(metrics["policy/clip_fraction"]) == 0.0
    assert float(metrics["policy/old_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(metrics["policy/logprob_diff_max"]) < 1e-5


def test_distinct_prompts_give_the_gradient_of_single_turns():
    """Each prompt is evaluated once for all its turns: compare with minibatches of one turn each."""
    module = candidate_learner(target_kl=None, value_clip=0.1, entropy_coef=0.05)
    batch = prepared(module)
    turns = [batch.select(torch.tensor([turn]), batch.loss_scale) for turn in range(len(batch))]
    assert [len(turn.prompts) for turn in turns] == [1] * 5
    parts = [gradients_of(module, turn) for turn in turns]
    for name, gradient in gradients_of(module, batch).items():
        torch.testing.assert_close(gradient, sum(part[name] for part in parts), rtol=1e-4, atol=1e-6)


def test_target_kl_brakes_and_keeps_what_pulls_back():
    """A rival's target KL only wrote a flag, and skipping the rest of a rollout left an overshoot in place.
    Beyond it a step has 2 times the value loss and 0.3 times the divergence, and nothing of advantages and
    entropy."""
    settings = {"old_kl_coef": 0.3, "old_kl_target": None, "value_coef": 2.0, "entropy_coef": 0.5}
    module = candidate_learner(target_kl=0.01, **settings)
    batch = prepared(module)
    module.loss(batch)
    assert module.steps_braked == 0
    second, metrics = shift(module, 0.5).loss(batch)
    assert float(metrics["policy/old_kl"]) > 0.01
    expected = 2.0 * float(metrics["loss/value"]) + 0.3 * float(metrics["policy/old_kl"])
    assert float(second.detach()) == pytest.approx(expected, rel=1e-6)
    assert module.steps_braked == 1
    module.loss_config = replace(module.loss_config, target_kl=None)
    assert float(module.loss(batch)[0].detach()) != pytest.approx(expected, rel=1e-3)


def test_a_brake_without_a_divergence_takes_no_step():
    """Nothing would pull the policy back: the value loss, in shared adapters, might carry it on."""
    module = candidate_learner(target_kl=0.01, old_kl_coef=0.0)
    batch = prepared(module)
    assert module.loss(batch) is not None
    assert shift(module, 0.5).loss(batch) == (None, {})
    assert module.loss(prepared(module)) is not None


@pytest.mark.parametrize("algorithm", [A2C, REINFORCE])
def test_without_clipping_the_divergence_holds_the_policy(algorithm):
    """A2C went from even odds to one action for every hand within two rollouts: nothing pulled it back."""
    own = algorithm().loss_config
    module = make_learner(algorithm, CandidatePolicy(), own, gamma=1.0)
    batch = prepared(module)
    loss, metrics = shift(module, 0.5).loss(batch)
    module.loss_config = replace(own, old_kl_coef=0.0)
    unheld, _ = module.loss(batch)
    assert float(metrics["policy/old_kl"]) > 0.01
    assert float((loss - unheld).detach()) == pytest.approx(float(metrics["policy/old_kl"]), rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"entropy_coef": 0.5},
        {"value_coef": 2.0},
        {"value_warmup": 1},
        {"detach_value": True},
        {"value_clip": 0.01},
        {"clip_low": 1e-6},
        {"clip_high": 1e-6},
        {"kl_coef": 1.0},
        {"old_kl_coef": 2.0},
        {"gamma": 0.5},
        {"gae_lambda": 0.0},
        {"whiten_advantages": False},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_every_setting_changes_the_gradient(settings):
    """A flag without effect is worse than none."""

    def gradient(**chosen):
        torch.manual_seed(0)  # the same adapters each time, or any two gradients would differ
        module = candidate_learner(target_kl=None, **chosen)
        batch = prepared(module)
        perturb(
            module, 0.05, parameters=("lora_B", "value_head.output.weight")
        )  # so that something is clipped
        gradients = gradients_of(module, batch)
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        return torch.cat([gradients.get(name, 0 * p).flatten() for name, p in trained.items()])

    assert torch.equal(gradient(), gradient())
    assert (gradient() - gradient(**settings)).abs().max() > 1e-6


def test_the_reference_is_the_model_without_adapters():
    """The exact KL(policy || reference), on the same prompts with the adapters off."""
    module = candidate_learner(kl_coef=0.1)
    batch = prepared(module)
    with torch.no_grad():
        now, _ = module.policy(CANDIDATE_PROMPTS)
        with module.policy.llm.reference():
            reference, _ = module.policy(CANDIDATE_PROMPTS)
    torch.testing.assert_close(batch.ref_candidate_logprobs.double(), reference, rtol=1e-6, atol=1e-6)
    expected = categorical_kl(now, reference)[batch.prompt_index].mean()
    assert float(module.loss(batch)[1]["policy/ref_kl"]) == pytest.approx(float(expected), rel=1e-4)
    assert float(expected) > 1e-3


def test_a_reference_without_adapters_is_refused_at_once():
    """Comparing a model with itself would be a silent zero."""
    with pytest.raises(ValueError, match="kl_coef is 0.1.*lora: null"):
        PPO(llm=LLMConfig(model="tiny", lora=None), loss=LossConfig(kl_coef=0.1))


def test_a_policy_that_ran_away_within_a_rollout_is_pulled_back():
    """Clipped, the objective has no gradient any more where the probability of the worse action has gone to
    0; only the divergence from the behavior policy still has one, and it points back."""
    pulls = {}
    for coefficient in (0.0, 0.3):
        settings = {"entropy_coef": 0.0, "value_coef": 0.0, "clip_high": 0.01, "old_kl_coef": coefficient}
        module = candidate_learner(target_kl=None, **settings)
        batch = prepared(module)
        runaway = torch.full_like(batch.old_candidate_logprobs, -torch.inf)
        runaway[batch.old_candidate_logprobs.isfinite()] = -9.0
        runaway[:, 0] = 0.0
        logprobs = runaway.log_softmax(-1).requires_grad_()
        module.policy.forward = lambda prompts, logprobs=logprobs: (logprobs, torch.zeros(len(prompts)))
        first = {
            "choices": torch.zeros_like(batch.choices),
            "old_logprobs": batch.old_candidate_logprobs[batch.prompt_index, :1],
            "advantages": torch.ones_like(batch.advantages),
        }
        module.loss(replace(batch, **first))[0].backward()
        pulls[coefficient] = -logprobs.grad[:, 1]
    assert pulls[0.0].abs().max() == 0.0
    assert (pulls[0.3] > 0.001).all()


def test_while_the_value_warms_up_the_policy_is_held_where_it_is():
    """The value's gradient goes through the adapters, which would move the policy; the divergence pulls it
    back."""
    module = candidate_learner(value_warmup=1, target_kl=None)
    batch = prepared(module)
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(30):
        gradients_of(module, batch)
        optimizer.step()
    _, after = module.loss(batch)
    assert float(after["loss/value"]) < 0.5 * float(value_loss(batch.old_values, batch.returns).mean())
    assert float(after["policy/old_kl"]) < 0.01


def test_a_detached_value_warms_up_without_the_language_model():
    """While only the head learns, no adapter may move: the divergence is left out too."""
    module = candidate_learner(detach_value=True, value_warmup=1)
    gradients = gradients_of(module, prepared(module))
    assert not any("lora" in name and gradient.any() for name, gradient in gradients.items())
    assert module.policy.llm.value_head.output.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("policy", "rates", "detached"),
    [(CandidatePolicy, (8e-4, 4e-3), False), (GenerationPolicy, (1e-4, 4e-3), True)],
)
def test_a_policy_that_writes_text_learns_in_smaller_steps(policy, rates, detached):
    """Catches the rate of choices for text, and a value that learns as slowly; given settings win."""
    module = PPO(policy=policy(), lr_scheduler=None)
    module.policy.bind(tiny.llm())
    body, head = module.configure_optimizers().param_groups
    assert (body["lr"], head["lr"]) == pytest.approx(rates)
    assert module.policy.detach_value is detached
    critic = CriticConfig(value_lr_scale=2.0, detach_value=not detached)
    module = PPO(
        policy=policy(), critic=critic, optimizer=partial(torch.optim.SGD, lr=0.1), lr_scheduler=None
    )
    module.policy.bind(tiny.llm())
    body, head = module.configure_optimizers().param_groups
    assert (body["lr"], head["lr"]) == pytest.approx((0.1, 0.2))
    assert module.policy.detach_value is not detached


def test_the_value_head_has_a_learning_rate_of_its_own():
    """A multiple of the optimizer's, in a parameter group that holds every parameter of the head and no
    other."""
    module = candidate_learner(value_lr_scale=10.0, lr_scheduler=None)
    optimizer = module.configure_optimizers()
    body, head = optimizer.param_groups
    assert (body["lr"], head["lr"]) == (pytest.approx(8e-4), pytest.approx(8e-3))
    assert {id(p) for p in head["params"]} == {id(p) for p in module.policy.llm.value_head.parameters()}
    assert len(body["params"]) + len(head["params"]) == len(
        [p for p in module.parameters() if p.requires_grad]
    )
