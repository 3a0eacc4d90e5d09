"""PPO on the tiny model: what it prepares, what its loss is, and that every setting does something."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers import tiny
from lgym.batch import Context, Rollout
from lgym.functional import categorical_kl, value_loss
from lgym.models import LLMConfig
from lgym.modules import PPO
from lgym.modules.schedules import WarmupCosine
from lgym.policies import CandidatePolicy


def context(text: str, *candidates: str) -> Context:
    encode = tiny.tokenizer().encode
    return Context(tuple(encode("see " + text)), tuple(tuple(encode(c)) for c in candidates), candidates, text)


CONTEXTS = (context("a", "x", "y"), context("b", "x", "y", "z"), context("c", "y", "x"))


def learner(**settings) -> PPO:
    policy = CandidatePolicy()
    policy.bind(tiny.llm(dtype=torch.float64))
    return PPO(llm=LLMConfig(model="tiny"), policy=policy, **{"value_warmup": 0, "detach_value": False, **settings})


def rollout(module: PPO, **changes) -> Rollout:
    """Two streams of three turns; the second one idles in the last."""
    with torch.no_grad():
        logprobs, values = module.policy.evaluate(CONTEXTS)
    fields = {
        "contexts": CONTEXTS,
        "context_ids": torch.tensor([[0, 1, 0], [2, 1, 0]]),
        "choices": torch.tensor([[0, 2, 1], [1, 0, 0]]),
        "rewards": torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]], dtype=torch.float64),
        "terminated": torch.tensor([[False, True, True], [False, True, True]]),
        "truncated": torch.zeros(2, 3, dtype=torch.bool),
        "cut": torch.zeros(2, 3, dtype=torch.bool),
        "mask": torch.tensor([[True, True, True], [True, True, False]]),
        "candidate_logprobs": logprobs,
        "replies": (),
        "parsed": torch.ones(2, 3, dtype=torch.bool),
        "episode_ids": torch.tensor([[0, 0, 2], [1, 1, 0]]),
        "reset_seeds": torch.tensor([[7, 7, 9], [8, 8, 0]]),
        "context_values": values,
        "next_values": torch.stack([values[[1, 0, 0]], values[[1, 0, 0]]]),
        "episode_returns": torch.tensor([1.0, -1.0, 2.0]),
        "episode_lengths": torch.tensor([2.0, 1.0, 2.0]),
        "episode_penalties": torch.zeros(3),
        "play_seconds": 0.1,
    }
    return Rollout(**{**fields, **changes})


def test_prepare_sorts_turns_by_context_and_drops_idle_ones():
    """Advantages that land on the wrong turns teach the wrong lesson (SkyRL#1507)."""
    module = learner(gamma=1.0, gae_lambda=1.0, whiten_advantages=False)
    played = rollout(module)
    batch = module.prepare(played)
    assert batch.rows.tolist() == [0, 0, 1, 1, 2]
    assert batch.choices.tolist() == [0, 1, 2, 0, 1]
    # lambda = gamma = 1: returns are the rewards still to come in the episode.
    torch.testing.assert_close(batch.returns, torch.tensor([1.0, -1.0, 0.0, 2.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(batch.advantages, batch.returns - played.context_values[batch.rows])
    assert batch.scale == 1 / 5


def test_whitening_is_over_the_whole_rollout():
    """TWOSOME normalised over minibatches of 4, whose means are noise."""
    batch = learner(whiten_advantages=True).prepare(rollout(learner()))
    assert float(batch.advantages.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(batch.advantages.std(correction=0)) == pytest.approx(1.0, abs=1e-6)


def test_minibatches_hold_every_turn_once_and_add_up_to_the_whole():
    """One pass in three minibatches must have the gradient of the pass in one, times their number."""
    module = learner(target_kl=None)
    batch = module.prepare(rollout(module))
    parameters = [p for n, p in module.named_parameters() if p.requires_grad]

    def gradient(parts):
        total = sum(module.loss(part)[0] for part in parts)
        return torch.autograd.grad(total, parameters)

    parts = list(batch.minibatches(1, order=[2, 0, 1]))
    assert [len(part) for part in parts] == [1, 2, 2]
    for split, whole in zip(gradient(parts), gradient([batch]), strict=True):
        torch.testing.assert_close(split / 3, whole, rtol=1e-5, atol=1e-7)


def test_first_loss_is_minus_the_mean_advantage():
    """Before the first step the ratio is 1 and nothing is clipped."""
    module = learner(value_coef=0.0, entropy_coef=0.0, whiten_advantages=False)
    batch = module.prepare(rollout(module))
    loss, metrics = module.loss(batch)
    assert float(loss) == pytest.approx(-float(batch.advantages.mean()), abs=1e-5)
    assert float(metrics["policy/clip_fraction"]) == 0.0
    assert float(metrics["policy/approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert module.rollout_metrics["policy/logprob_diff_max"] < 1e-5


def test_distinct_contexts_give_the_gradient_of_single_turns():
    """The loss gathers per turn from rows that are evaluated once: compare with a batch of one turn each."""
    module = learner(target_kl=None, value_clip=0.1, entropy_coef=0.05)
    batch = module.prepare(rollout(module))
    parameters = [p for n, p in module.named_parameters() if p.requires_grad]
    ours = torch.autograd.grad(module.loss(batch)[0], parameters)
    total = 0.0
    for turn in range(len(batch)):
        u = int(batch.rows[turn])
        one = type(batch)(
            contexts=(batch.contexts[u],),
            bundles=((0,),),
            rows=torch.zeros(1, dtype=torch.int64),
            choices=batch.choices[[turn]],
            old_logprobs=batch.old_logprobs[[u], : len(batch.contexts[u].candidates)],
            old_values=batch.old_values[[turn]],
            advantages=batch.advantages[[turn]],
            returns=batch.returns[[turn]],
            ref_logprobs=None,
            scale=1 / len(batch),
        )
        total = total + module.loss(one)[0]
    for a, b in zip(ours, torch.autograd.grad(total, parameters), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def moved(module: PPO) -> PPO:
    """The same with another policy."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.5)
    return module


def test_target_kl_brakes_and_keeps_what_pulls_back():
    """A rival's target-KL only wrote a flag, and skipping the rest of a rollout left an overshoot in place. Beyond it a
    step has 2 times the value's loss and 0.3 times the divergence, and nothing of advantages and entropy."""
    module = learner(target_kl=0.01, old_kl_coef=0.3, value_coef=2.0, entropy_coef=0.5)
    batch = module.prepare(rollout(module))
    first, _ = module.loss(batch)
    assert module.steps_braked == 0
    second, metrics = moved(module).loss(batch)
    assert float(metrics["policy/approx_kl"]) > 0.01
    expected = 2.0 * float(metrics["loss/value"]) + 0.3 * float(metrics["policy/approx_kl"])
    assert float(second.detach()) == pytest.approx(expected, rel=1e-6)
    assert module.steps_braked == 1
    module.target_kl = None
    assert float(module.loss(batch)[0].detach()) != pytest.approx(expected, rel=1e-3)


def test_a_brake_without_a_divergence_takes_no_step():
    """Nothing would pull the policy back: the value's loss, in shared adapters, might carry it on."""
    module = learner(target_kl=0.01, old_kl_coef=0.0)
    batch = module.prepare(rollout(module))
    assert module.loss(batch) is not None
    assert moved(module).loss(batch) is None
    assert module.loss(module.prepare(rollout(module))) is not None


def test_the_divergence_of_a_minibatch_is_that_of_its_turns():
    """What a rollout with a single step tells of it, after it."""
    module = learner(target_kl=None)
    batch = module.prepare(rollout(module))
    metrics = moved(module).loss(batch)[1]
    assert float(module.divergence(batch).detach()) == pytest.approx(float(metrics["policy/approx_kl"]), rel=1e-9)
    assert float(metrics["policy/approx_kl"]) > 0.01


@pytest.mark.parametrize(
    "settings",
    [
        {"entropy_coef": 0.5},
        {"value_coef": 2.0},
        {"value_warmup": 1},
        {"reward_scale": 0.1},
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
        module = learner(target_kl=None, **chosen)
        module.acting = lambda: _Acting(module.policy)
        played = rollout(module)
        batch = module.prepare(played)
        with torch.no_grad():  # a step away from the policy that played, so that clipping has something to do
            for name, parameter in module.named_parameters():
                if "lora_B" in name or "value_head.output.weight" in name:
                    parameter.add_(0.05 * torch.randn_like(parameter))
        parameters = [p for p in module.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(module.loss(batch)[0], parameters, allow_unused=True)
        return torch.cat([(p * 0 if g is None else g).flatten() for p, g in zip(parameters, gradients, strict=True)])

    assert torch.equal(gradient(), gradient())
    assert (gradient() - gradient(**settings)).abs().max() > 1e-6


class _Acting:
    def __init__(self, policy):
        self.policy = policy

    def __enter__(self):
        return self.policy

    def __exit__(self, *_):
        return False


def test_reference_kl_is_to_the_model_without_adapters():
    """The reference is the adapter switched off, on the same prompts."""
    module = learner(kl_coef=0.1)
    module.acting = lambda: _Acting(module.policy)
    batch = module.prepare(rollout(module))
    with torch.no_grad():
        now, _ = module.policy(CONTEXTS)
        with module.policy.llm.reference():
            base, _ = module.policy(CONTEXTS)
    torch.testing.assert_close(batch.ref_logprobs, base, rtol=1e-6, atol=1e-6)
    expected = categorical_kl(now, base)[batch.rows].mean()
    assert float(module.loss(batch)[1]["policy/ref_kl"]) == pytest.approx(float(expected), rel=1e-4)
    assert float(expected) > 1e-3


def test_reference_without_adapters_is_refused_at_once():
    """Comparing a model with itself would be a silent zero."""
    with pytest.raises(ValueError, match="kl_coef is 0.1.*lora: null"):
        PPO(llm=LLMConfig(model="tiny", lora=None), kl_coef=0.1)


@pytest.mark.parametrize(
    "settings",
    [{"gamma": 1.5}, {"gae_lambda": -0.1}, {"clip_low": 1.2}, {"clip_high": 0.0}, {"target_kl": 0.0}]
    + [{"old_kl_coef": -0.1}, {"reward_scale": 0.0}],
)
def test_bad_settings_are_refused(settings):
    """Named, with the value and what it must be."""
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        PPO(llm=LLMConfig(model="tiny"), **settings)


def test_a_policy_that_ran_away_within_a_rollout_is_pulled_back():
    """Clipped, the objective has no gradient any more where the probability of the worse action has gone to 0; only the
    divergence from the policy that played still has one, and it points back."""
    pulls = {}
    for coefficient in (0.0, 0.3):
        module = learner(target_kl=None, entropy_coef=0.0, value_coef=0.0, clip_high=0.01, old_kl_coef=coefficient)
        played = rollout(module)
        batch = module.prepare(played)
        runaway = torch.full_like(batch.old_logprobs, -torch.inf)
        runaway[batch.old_logprobs.isfinite()] = -9.0
        runaway[:, 0] = 0.0
        logprobs = runaway.log_softmax(-1).requires_grad_()
        module.policy.forward = lambda contexts, logprobs=logprobs: (logprobs, torch.zeros(len(contexts)))
        choices = torch.zeros_like(batch.choices)
        module.loss(replace(batch, choices=choices, advantages=torch.ones_like(batch.advantages)))[0].backward()
        pulls[coefficient] = -logprobs.grad[:, 1]
    assert pulls[0.0].abs().max() == 0.0
    assert (pulls[0.3] > 0.001).all()


def test_while_the_value_warms_up_the_policy_is_held_where_it_is():
    """The value's gradient goes through the adapters, which would move the policy; the divergence pulls it back."""
    module = learner(value_warmup=1, target_kl=None)
    batch = module.prepare(rollout(module))
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(30):
        loss, metrics = module.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    _, after = module.loss(batch)
    assert float(after["loss/value"]) < 0.5 * float(value_loss(batch.old_values, batch.returns).mean())
    assert float(after["policy/approx_kl"]) < 0.01


def test_a_detached_value_head_leaves_the_language_model_alone():
    """While only the head learns, no adapter may move."""
    module = learner(detach_value=True, value_warmup=1)
    loss, _ = module.loss(module.prepare(rollout(module)))
    loss.backward()
    for name, parameter in module.named_parameters():
        if "lora" in name:
            assert parameter.grad is None or not parameter.grad.any(), name
    assert module.policy.llm.value_head.output.weight.grad.abs().max() > 0


def test_the_value_head_has_a_learning_rate_of_its_own():
    """A multiple of the optimizer's, in a parameter group that holds every parameter of the head and no other."""
    module = learner(value_lr_scale=10.0)
    optimizer = module.configure_optimizers()
    body, head = optimizer.param_groups
    assert (body["lr"], head["lr"]) == (pytest.approx(3e-4), pytest.approx(3e-3))
    assert {id(p) for p in head["params"]} == {id(p) for p in module.policy.llm.value_head.parameters()}
    assert len(body["params"]) + len(head["params"]) == len([p for p in module.parameters() if p.requires_grad])


def test_the_schedule_warms_up_and_falls():
    """Of a rate of 1: 1/4, 2/4, 3/4, then 1 falling by half a cosine to 0.2 after 10 rollouts, halfway at 0.6."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = WarmupCosine(optimizer, warmup=3, total=9, final=0.2)
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[6] == pytest.approx(0.6)
    assert rates[9:] == pytest.approx([0.2] * 3)


@pytest.mark.parametrize("settings", [{"warmup": 9, "total": 9}, {"warmup": 0, "total": 5, "final": 2.0}])
def test_an_impossible_schedule_is_refused(settings):
    """A warm-up longer than the run would never reach the rate."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(ValueError, match="warmup is 9|final is 2.0"):
        WarmupCosine(optimizer, **settings)
