"""The credit that each algorithm gives, by hand, on the rollout of `test_grpo`.

Episode 0: says replies 0 and 1, is paid 1 and 2. Episode 1: replies 2 and 3, 0 and 1. Both from seed 7, beginning at 'red'.
Episodes 2 and 3: replies 4 and 5, each paid 0.5, from seed 8.
"""

from __future__ import annotations

from types import SimpleNamespace

import lightning as L
import pytest
import torch

from helpers import tiny
from lgym.models import LLMConfig
from lgym.modules import A2C, GRPO, PPO, REINFORCE, RLOO, GiGPO, TextPPO, TokenLoss
from lgym.policies import GenerationPolicy
from modules.test_grpo import REPLIES, rollout


def learner(algorithm, **settings):
    policy = GenerationPolicy(max_new_tokens=5)
    policy.bind(tiny.llm(dtype=torch.float64))
    module = algorithm(llm=LLMConfig(model="tiny"), policy=policy, **settings)
    module.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    return module


def credit(module, changes=None):
    """The advantage of each reply's tokens, all the same, by reply; 0 where it was left out."""
    batch = module.prepare(rollout(**(changes or {})))
    found = dict.fromkeys(REPLIES, 0.0)
    for reply, mask, advantages in zip(batch.replies, batch.mask, batch.advantages, strict=True):
        assert (advantages[~mask] == 0).all()
        (found[reply],) = set(advantages[mask].tolist())
    return [found[reply] for reply in REPLIES]


PLAIN = {"whiten_advantages": False}


@pytest.mark.parametrize(
    ("algorithm", "settings", "expected"),
    [
        (GRPO, {"scale_by_std": False}, [1, 1, -1, -1, 0, 0]),
        (RLOO, {}, [2, 2, -2, -2, 0, 0]),  # 3 less the other's 1
        # at 'red' 1 + 2 and 0 + 1 are 1 above and below their mean; nobody else was where they were
        (GiGPO, {"scale_by_std": False, "gamma": 1.0}, [2, 1, -2, -1, 0, 0]),
        (GiGPO, {"scale_by_std": False, "gamma": 1.0, "step_weight": 0.5}, [1.5, 1, -1.5, -1, 0, 0]),
        # earned from each turn on, at gamma 0.5: 2, 2, 0.5, 1, 0.5, 0.5; their mean is 6.5 / 6
        (REINFORCE, PLAIN | {"gamma": 0.5}, [e - 6.5 / 6 for e in (2, 2, 0.5, 1, 0.5, 0.5)]),
        (A2C, PLAIN | {"gamma": 0.5}, [2, 2, 0.5, 1, 0.5, 0.5]),  # every value is 0
        (TextPPO, PLAIN | {"gamma": 0.5, "gae_lambda": 1.0}, [2, 2, 0.5, 1, 0.5, 0.5]),
        (TextPPO, PLAIN | {"gamma": 0.5, "gae_lambda": 0.0}, [1, 2, 0, 1, 0.5, 0.5]),
    ],
)
def test_credit_by_hand(algorithm, settings, expected):
    assert credit(learner(algorithm, **settings)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("algorithm", [A2C, TextPPO])
def test_truncation_bootstraps_and_termination_does_not(algorithm):
    """Episode 2 is worth 10 where it ended: that counts, at gamma 0.5 as 5, where it was cut off, and else not."""
    settings = PLAIN | {"gamma": 0.5, "gae_lambda": 1.0}
    worth = torch.zeros(2, 3)
    worth[0, 2] = 10.0
    assert credit(learner(algorithm, **settings), {"next_values": worth})[4] == pytest.approx(0.5)
    cut = {
        "next_values": worth,
        "terminated": torch.tensor([[False, True, False], [False, True, True]]),
        "truncated": torch.tensor([[False, False, True], [False, False, False]]),
    }
    assert credit(learner(algorithm, **settings), cut)[4] == pytest.approx(5.5)


def test_tokens_have_credit_of_their_own():
    """With lambda 0, a token is credited with the value of the next; at a turn's end with its reward and the next turn's."""
    module = learner(TextPPO, credit="token", gamma=0.5, gae_lambda=0.0, **PLAIN)
    values = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))
    module.objective.recorded = lambda batch: SimpleNamespace(values=values)  # sorted as the batch
    batch = module.prepare(rollout(next_values=torch.full((2, 3), 2.0)))
    turn = batch.replies.index(REPLIES[2])  # episode 1's first: four tokens, paid 0
    expected = [float(values[turn, t + 1] - values[turn, t]) for t in range(3)] + [0.5 * 2.0 - float(values[turn, 3])]
    assert batch.advantages[turn].tolist() == pytest.approx(expected, abs=1e-6)
    last = batch.replies.index(REPLIES[3])  # its second, which terminates: three tokens, paid 1
    expected = [float(values[last, t + 1] - values[last, t]) for t in range(2)] + [1.0 - float(values[last, 2])]
    assert batch.advantages[last, :3].tolist() == pytest.approx(expected, abs=1e-6)
    assert batch.returns[last, 2] == pytest.approx(1.0)


def test_values_are_recorded_before_they_are_trained():
    """What `credit: token` starts from are the policy's own values of each token's state."""
    module = learner(TextPPO, credit="token")
    batch, _ = module.objective.begin(rollout())
    recorded = module.objective.recorded(batch)
    with torch.no_grad():
        likely = module.policy.likelihoods(batch)
    torch.testing.assert_close(recorded.values * batch.mask, likely.values.float() * batch.mask, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(recorded.logprobs, likely.logprobs.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("algorithm", "credit_by"), [(A2C, {}), (TextPPO, {}), (TextPPO, {"credit": "token"})])
def test_values_learn_what_was_earned(algorithm, credit_by):
    """Turn by turn the state before the turn, or every token's; only the value term has its gradient in the head."""
    module = learner(algorithm, value_coef=3.0, **credit_by)
    batch = module.prepare(rollout())
    total, metrics = module.loss(batch)
    total.backward()
    assert float(module.policy.llm.value_head.output.weight.grad.abs().sum()) > 0
    likely = module.policy.likelihoods(batch)
    width = 4 if credit_by else 1
    assert batch.returns.shape == (6, width)
    errors = ((likely.values[:, :width] - batch.returns).square() / 2).expand(-1, 4)
    assert float(metrics["loss/value"]) == pytest.approx(float(errors[batch.mask].mean().detach()), rel=1e-5)


def test_a_divergence_in_the_rewards_is_taken_before_credit():
    """Each turn is paid less by its tokens' k1 to the reference, and the loss has no such term."""
    module = learner(RLOO, loss=TokenLoss(kl_coef=0.5, kl_in="reward", kl_estimator="k1"))
    batch, turns = module.objective.begin(rollout())
    assert batch.ref_logprobs is None
    with torch.no_grad(), module.policy.llm.reference():
        reference = module.policy.likelihoods(batch).logprobs
    paid = dict(zip(REPLIES, (1.0, 2.0, 0.0, 1.0, 0.5, 0.5), strict=True))
    for reply, mask, old, ref in zip(batch.replies, batch.mask, batch.old_logprobs, reference, strict=True):
        paid[reply] -= 0.5 * float((old - ref)[mask].sum())
    first, second, third, fourth, *rest = (paid[reply] for reply in REPLIES)
    assert turns.returns.tolist() == pytest.approx([first + second, third + fourth, *rest], rel=1e-4)


def test_while_the_value_warms_up_the_policy_is_held():
    """The loss is then the divergence from the policy that played and the value's error, whatever the advantages are; after
    it, `old_kl_coef` is that divergence's weight."""
    module = learner(TextPPO, value_warmup=2, value_coef=3.0, loss=TokenLoss(entropy_coef=0.5, normalise_by="tokens"))
    batch = module.prepare(rollout())
    total, metrics = module.loss(batch)
    held = float(metrics["policy/approx_kl"]) + 3.0 * float(metrics["loss/value"])
    assert float(total.detach()) == pytest.approx(held, rel=1e-6)
    assert float(metrics["policy/approx_kl"]) > 0.1
    module.value_warmup = 0
    losses = {}
    for coef in (0.0, 0.4):
        module.objective.settings = TokenLoss(entropy_coef=0.5, normalise_by="tokens", old_kl_coef=coef)
        total, metrics = module.loss(batch)
        losses[coef] = float(total.detach())
    assert losses[0.0] != pytest.approx(held, rel=1e-3)
    assert losses[0.4] - losses[0.0] == pytest.approx(0.4 * float(metrics["policy/approx_kl"]), rel=1e-5)


def test_the_entropy_bonus_has_a_gradient():
    """At advantage 0 the loss is -entropy_coef times the mean entropy, and so is its gradient."""
    module = learner(TextPPO, loss=TokenLoss(entropy_coef=0.7), value_coef=0.0)
    batch = module.prepare(rollout())
    batch = type(batch)(
        **{**vars(batch), "advantages": torch.zeros_like(batch.advantages), "old_logprobs": batch.old_logprobs}
    )
    parameters = [p for name, p in module.named_parameters() if "lora" in name]
    total, _ = module.loss(batch)
    entropy = module.policy.likelihoods(batch, entropy_gradient=True).entropy
    expected = -0.7 * (entropy.sum(1) / batch.mask.sum(1)).mean()
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    ours, plain = (torch.autograd.grad(loss, parameters, retain_graph=True) for loss in (total, expected))
    assert sum(float(gradient.abs().sum()) for gradient in plain) > 0
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("algorithm", [GRPO, RLOO])
def test_the_divergence_counts_turns_that_have_no_advantage(algorithm):
    """It holds the policy wherever it plays; turns of groups without signal were left out of it: 0.716 for 0.940."""
    module = learner(algorithm, loss=TokenLoss(old_kl_coef=0.5, normalise_by="tokens"))
    batch = module.prepare(rollout())
    assert len(batch) == 6
    without = learner(algorithm).prepare(rollout())
    assert len(without) == 4
    total, metrics = module.loss(batch)
    kl = 0.5 * float(metrics["policy/approx_kl"])  # over all 6 turns
    assert float(total.detach()) == pytest.approx(float(metrics["loss/policy"]) + kl, rel=1e-6)


def test_reinforce_refuses_a_border_as_the_end_of_an_episode():
    """Returns to go were 8, 7, ..., 1 where they are 10, 9, ..., 3: what comes behind the border is not known."""
    module = learner(REINFORCE)
    module.trainer = SimpleNamespace(datamodule=SimpleNamespace(update_epochs=1, turns_per_rollout=64))
    with pytest.raises(ValueError, match="REINFORCE.*set data.episodes_per_rollout, not data.turns_per_rollout"):
        module.setup("fit")
    cut = torch.zeros(2, 3, dtype=torch.bool)
    cut[0, 2] = True
    with pytest.raises(ValueError, match="set data.episodes_per_rollout"):
        learner(REINFORCE).prepare(rollout(cut=cut, truncated=cut))


@pytest.mark.parametrize("algorithm", [A2C, REINFORCE])
def test_several_passes_need_clipping(algorithm):
    module = learner(algorithm)
    module.trainer = SimpleNamespace(datamodule=SimpleNamespace(update_epochs=2))
    with pytest.raises(ValueError, match="update_epochs is 2"):
        module.setup("fit")
    clipped = learner(algorithm, loss=TokenLoss())
    clipped.trainer = module.trainer
    clipped.setup("fit")


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        (algorithm, settings, message)
        for algorithm in (PPO, TextPPO, A2C)
        for settings, message in [
            ({"reward_scale": -1.0}, "reward_scale is -1.0; it must be above 0"),
            ({"reward_scale": float("nan")}, "reward_scale is nan"),
            ({"value_coef": -0.5}, "value_coef is -0.5; it must be 0 or more"),
            ({"value_coef": float("inf")}, "value_coef is inf"),
            ({"value_lr_scale": 0.0}, "value_lr_scale is 0.0"),
            ({"gamma": 1.5}, "gamma is 1.5"),
        ]
    ]
    + [
        (PPO, {"value_clip": -1.0}, "value_clip is -1.0"),
        (PPO, {"entropy_coef": -1.0}, "entropy_coef is -1.0"),
        (PPO, {"target_kl": 0.0}, "target_kl is 0.0"),
        (TextPPO, {"value_warmup": -1}, "value_warmup is -1"),
        (GiGPO, {"step_weight": -1.0}, "step_weight is -1.0"),
    ],
)
def test_senseless_settings_are_refused(algorithm, settings, message):
    """A negative scale turned every reward round, in silence."""
    with pytest.raises(ValueError, match=message):
        algorithm(llm=LLMConfig(model="tiny"), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": None}, "give both"),
        ({"entropy_coef": -1.0}, "entropy_coef is -1.0"),
        ({"old_kl_coef": -1.0}, "old_kl_coef is -1.0"),
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, "k1 has no gradient"),
        ({"kl_estimator": "k9"}, "kl_estimator is 'k9'; choose one of k1, k2, k3"),
        ({"kl_in": "rewards"}, "kl_in is 'rewards'; choose one of loss, reward"),
        ({"normalise_by": "sentence"}, "normalise_by is 'sentence'; choose one of reply, tokens, limit"),
        ({"sft_rollouts": -1}, "sft_rollouts is -1"),
        ({"sft_coef": -1.0}, "sft_coef is -1.0"),
    ],
)
def test_bad_losses_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        learner(GRPO, loss=TokenLoss(**settings))


def test_another_credit_is_refused():
    """It would be that of turns, in silence."""
    with pytest.raises(ValueError, match="credit is 'word'; choose one of turn, token"):
        learner(TextPPO, credit="word")
