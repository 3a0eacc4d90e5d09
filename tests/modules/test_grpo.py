"""GRPO: which tokens learn, from which advantage, against a loop that says it plainly."""

from __future__ import annotations

from dataclasses import replace

import lightning as L
import pytest
import torch

from helpers import tiny
from helpers.letters import CONFIG as LETTERS
from helpers.replies import reply_batch
from helpers.runs import lgym, scalars
from lgym.batch import Reply, Rollout
from lgym.data.prompts import prompt_builder
from lgym.models import LLMConfig
from lgym.modules import GRPO, TokenLoss
from lgym.policies import GenerationPolicy
from policies.test_generation import CONTEXTS


def learner(**settings) -> GRPO:
    policy = GenerationPolicy(max_new_tokens=5)
    policy.bind(tiny.llm(dtype=torch.float64))
    scale_by_std = settings.pop("scale_by_std", True)
    return GRPO(llm=LLMConfig(model="tiny"), policy=policy, scale_by_std=scale_by_std, loss=TokenLoss(**settings))


REPLIES = [(70, 71), (72,), (70, 75, 76, 77), (80, 81, 82), (83, 84), (85,)]
"""Of turns: episode 0 says 0 and 1, episode 1 says 2 and 3, episodes 2 and 3 one each."""


def rollout(**changes) -> Rollout:
    """Two streams: episodes 0 and 2, 1 and 3. Returns 3 and 1 from seed 7, 0.5 and 0.5 from seed 8."""
    logprobs = torch.linspace(-3, -1, 20).tolist()
    fields = {
        "contexts": tuple(CONTEXTS),
        "context_ids": torch.tensor([[0, 1, 2], [0, 2, 2]]),
        "choices": torch.tensor([[0, 1, 4], [2, 3, 5]]),
        "rewards": torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, 0.5]]),
        "terminated": torch.tensor([[False, True, True], [False, True, True]]),
        "truncated": torch.zeros(2, 3, dtype=torch.bool),
        "cut": torch.zeros(2, 3, dtype=torch.bool),
        "mask": torch.ones(2, 3, dtype=torch.bool),
        "parsed": torch.tensor([[True, True, True], [True, False, True]]),
        "episode_ids": torch.tensor([[0, 0, 2], [1, 1, 3]]),
        "reset_seeds": torch.tensor([[7, 7, 8], [7, 7, 8]]),
        "candidate_logprobs": None,
        "replies": tuple(Reply(ids, tuple(logprobs[: len(ids)]), ended=len(ids) < 4) for ids in REPLIES),
        "context_values": torch.zeros(3),
        "next_values": torch.zeros(2, 3),
        "episode_returns": torch.tensor([3.0, 1.0, 0.5, 0.5]),
        "episode_lengths": torch.tensor([2.0, 2.0, 1.0, 1.0]),
        "episode_penalties": torch.zeros(4),
        "play_seconds": 0.1,
    }
    return Rollout(**{**fields, **changes})


def test_every_turn_has_its_episodes_advantage():
    """3 and 1 are 1 above and below their mean; 0.5 and 0.5 teach nothing and are left out."""
    module = learner(scale_by_std=False)
    batch = module.prepare(rollout())
    assert batch.rows.tolist() == [0, 0, 1, 2]
    assert batch.replies == (REPLIES[0], REPLIES[2], REPLIES[1], REPLIES[3])
    assert batch.advantages[:, 0].tolist() == [1.0, -1.0, 1.0, -1.0]
    assert torch.equal(batch.advantages != 0, batch.mask)
    assert batch.mask.sum(1).tolist() == [2, 4, 1, 3]
    assert module.rollout_metrics["rollout/frac_reward_zero_std"] == 0.5
    assert module.rollout_metrics["rollout/parse_rate"] == pytest.approx(5 / 6)
    assert module.rollout_metrics["response/clipped_ratio"] == pytest.approx(1 / 6)
    assert module.rollout_metrics["response/length_mean"] == pytest.approx(13 / 6)


@pytest.mark.parametrize("normalise_by", ["reply", "tokens", "limit"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("repeated", [False, True])
def test_the_loss_is_that_of_a_plain_loop(normalise_by, size, repeated):
    """Over all 6 turns (13 tokens), though two of them are left out; minibatches of a pass average to it. Where both
    episodes from seed 7 begin with reply 0, one gaining by it and one losing, it is computed once and counts twice."""
    module = learner(normalise_by=normalise_by, clip_low=0.1, clip_high=0.3)
    changes = {"choices": torch.tensor([[0, 1, 4], [0, 3, 5]])} if repeated else {}
    batch = module.prepare(rollout(**changes))
    tokens = 11 if repeated else 13
    expected = 0.0
    for row, ids, old, advantage in zip(
        batch.rows.tolist(), batch.replies, batch.old_logprobs, batch.advantages, strict=True
    ):
        with torch.no_grad():
            new = module.policy.likelihoods(reply_batch(CONTEXTS, [row], [ids])).logprobs[0]
        advantage = advantage[0]
        ratio = (new - old[: len(ids)]).exp()
        terms = -torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.3) * advantage)
        expected += float(terms.sum()) / {"reply": 6 * len(ids), "tokens": tokens, "limit": 6 * 5}[normalise_by]
    minibatches = list(batch.minibatches(size, [0, 1, 2]))
    assert len(minibatches) == -(-(3 if repeated else 4) // size)
    parts = [float(module.loss(part)[0].detach()) for part in minibatches]
    assert sum(parts) / len(parts) == pytest.approx(expected, rel=1e-5)


def test_the_reference_is_the_model_without_adapters():
    """At kl_coef 1 the loss is that at 0 plus the mean k3 of each reply, and turns without advantage count."""
    module = learner(kl_coef=1.0)
    module.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    batch = module.prepare(rollout())
    assert len(batch) == 6
    with torch.no_grad(), module.policy.llm.reference():
        own = module.policy.likelihoods(batch)
    torch.testing.assert_close(batch.ref_logprobs, own.logprobs.float(), rtol=1e-4, atol=1e-5)
    with_kl, metrics = module.loss(batch)
    without, _ = module.loss(replace(batch, ref_logprobs=None))
    assert float((with_kl - without).detach()) > 1e-3
    assert float(metrics["policy/ref_kl"]) > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episode_returns": torch.tensor([3.0, 1.0, 0.5])}, "whole episodes"),
        ({"reset_seeds": torch.tensor([[7, 7, 8], [9, 9, 5]])}, "group_size to 2"),
        ({"context_ids": torch.tensor([[0, 1, 2], [1, 2, 2]])}, "seed 7 began differently: 'red' and 'green'"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        learner().prepare(rollout(**changes))


def test_a_question_that_a_rollout_holds_twice_is_the_same():
    """Catches first observations compared by their rows: an episode that is asked the same anew has begun alike, and an
    environment that honours its seed is not accused of anything."""
    twice = (*CONTEXTS, replace(CONTEXTS[0]))
    again = {"contexts": twice, "context_ids": torch.tensor([[0, 1, 2], [3, 2, 2]]), "context_values": torch.zeros(4)}
    assert learner().prepare(rollout(**again)).advantages.any()


def test_a_run_that_outgrows_its_cache_goes_on(tmp_path, model_folder, monkeypatch):
    """100 tokens hold one prompt: each second turn has that of the first forgotten. The episodes of a group that were begun
    afterwards looked as if they had begun otherwise, and the run ended with an accusation of the environment."""
    config = tmp_path / "letters.yaml"
    config.write_text(LETTERS)
    monkeypatch.setattr(prompt_builder, "CACHED_TOKENS", 100)
    turns = {"data__env": "Echo-v0", "data__env_kwargs": "{turns: 3}", "data__agent": "helpers.echo.ForgivingEchoAgent"}
    small = {"data__episodes_per_rollout": 32, "data__num_envs": 4, "data__eval_episodes": 2}
    policy = {"model__init_args__policy": "lgym.policies.CandidatePolicy"}
    lgym("fit", tmp_path / "runs", model_folder, config, trainer__max_epochs=2, **turns, **small, **policy)
    assert len(scalars(tmp_path / "runs")["rollout/return_mean"]) == 2


@pytest.mark.parametrize("settings", [{"clip_low": 1.0}, {"clip_high": 0.0}, {"kl_coef": -1.0}])
def test_bad_settings_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=name):
        learner(**settings)
