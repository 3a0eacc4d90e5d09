"""A reward that random play does not find: found with the exploration bonus, and a control without."""

from __future__ import annotations

from functools import partial

import torch

from helpers.lock import LockAgent
from helpers.training import fit, tiny_config
from lgym.data import ExplorationBonus
from lgym.modules import PPO, LossConfig
from lgym.policies import CandidatePolicy

ROLLOUTS = 20


def learn(tmp_path, model_folder, bonus: ExplorationBonus | None) -> dict[str, list[float]]:
    module = PPO(
        llm=tiny_config(model_folder),
        policy=CandidatePolicy(length_normalization="token", temperature=3),
        optimizer=partial(torch.optim.AdamW, lr=0.005),
        lr_scheduler=None,
        loss=LossConfig(entropy_coef=0.01, old_kl_coef=0.3),
    )
    data = {
        "env": "Lock-v0",
        "agent": LockAgent(),
        "num_envs": 16,
        "episodes_per_rollout": 64,
        "update_epochs": 6,
        "exploration_bonus": bonus,
    }
    return fit(module, tmp_path, data=data, trainer={"max_epochs": ROLLOUTS})


def test_the_bonus_leads_to_a_reward_that_is_far_away(tmp_path, model_folder):
    """In 20 rollouts of 64 episodes, 1,280 in all. The returns are the environment's: 0 until then, whatever
    the bonuses were."""
    curves = learn(tmp_path, model_folder, ExplorationBonus(coef=0.3, anneal=16))
    assert curves["rollout/return_mean"][:3] == [0.0, 0.0, 0.0]
    assert curves["rollout/return_mean"][-1] > 0.4
    assert 0.299 < curves["rollout/bonus_mean"][0] < 0.301
    assert curves["rollout/bonus_mean"][-2:] == [0.0, 0.0]


def test_without_it_the_reward_is_not_found(tmp_path, model_folder):
    """The control: at 1 in 4,096 tries, in 1,280 with a probability of 27 %, and then once or twice."""
    curves = learn(tmp_path, model_folder, None)
    assert max(curves["rollout/return_mean"]) < 0.04
    assert "rollout/bonus_mean" not in curves
