"""Learning of the echo task by every algorithm, and of its opposite where the reward is turned round."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from helpers.training import fit, tiny_config
from lgym.data import ReplayBuffer
from lgym.modules import A2C, DQN, GRPO, PPO, REINFORCE, RLOO, SAC, GiGPO, LossConfig
from lgym.policies import CandidatePolicy

GROUPS = ({"group_size": 8, "update_epochs": 4, "minibatch_size": 2}, 12, 0.01)
ALGORITHMS = {
    GRPO: GROUPS,
    RLOO: GROUPS,
    GiGPO: GROUPS,
    REINFORCE: ({"update_epochs": 1, "minibatch_size": 1}, 40, 0.01),
    A2C: ({"update_epochs": 1, "minibatch_size": 1}, 40, 0.003),
}
"""The data, the rollouts and the learning rate of each."""


def learn(module, tmp_path, *, sign, rollouts, **data):
    """The curves of a run that ends with 200 evaluation episodes."""
    task = {"env_kwargs": {"sign": sign}, "eval_episodes": 200, **data}
    return fit(module, tmp_path, data=task, trainer={"max_epochs": rollouts, "limit_val_batches": 1.0})


@pytest.mark.parametrize("sign", [1, pytest.param(-1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_learns_to_say_the_word(tmp_path, model_folder, algorithm, sign):
    """Chance is 1/3; the control loses 1 for the word shown, and its chance is -1/3."""
    data, rollouts, rate = ALGORITHMS[algorithm]
    module = algorithm(
        llm=tiny_config(model_folder),
        policy=CandidatePolicy(length_normalization="token", temperature=3),
        optimizer=partial(torch.optim.AdamW, lr=rate),
    )
    curves = learn(
        module, tmp_path, sign=sign, rollouts=rollouts, num_envs=64, episodes_per_rollout=128, **data
    )
    assert curves["val_sampled/return_mean"][-1] > (0.75 if sign > 0 else -0.1)


@pytest.mark.parametrize("sign", [1, pytest.param(-1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("algorithm", "rate"), [(DQN, 0.005), (partial(DQN, action_values="head"), 0.005), (SAC, 0.003)]
)
def test_an_algorithm_learns_from_replayed_turns(tmp_path, model_folder, algorithm, rate, sign):
    """The same, of a quarter of the turns. At 0.005 SAC loses its features again, after ten rollouts."""
    module = algorithm(
        llm=tiny_config(model_folder),
        policy=CandidatePolicy(length_normalization="token", temperature=3),
        optimizer=partial(torch.optim.AdamW, lr=rate),
        lr_scheduler=None,
    )
    buffer = ReplayBuffer(minibatch_size=64, updates_per_rollout=16, learning_starts=32)
    curves = learn(
        module, tmp_path, sign=sign, rollouts=12, num_envs=32, episodes_per_rollout=32, replay=buffer
    )
    assert curves["val_sampled/return_mean"][-1] > (0.75 if sign > 0 else -0.1)


@pytest.mark.parametrize("sign", [1, -1])
def test_ppo_learns_to_say_the_word(tmp_path, model_folder, sign):
    """A loss of the wrong sign, credit on the wrong turn or a dead gradient stays at chance."""
    module = PPO(
        llm=tiny_config(model_folder),
        policy=CandidatePolicy(length_normalization="token", temperature=3),
        optimizer=partial(torch.optim.AdamW, lr=0.005),
        loss=LossConfig(entropy_coef=0.01, old_kl_coef=0.3),
    )
    curves = learn(
        module, tmp_path, sign=sign, rollouts=10, num_envs=32, episodes_per_rollout=96, update_epochs=8
    )
    first, last = curves["rollout/return_mean"][0], curves["val_sampled/return_mean"][-1]
    if sign > 0:
        assert last > 0.8
        assert first < 0.6
    else:
        assert last > -0.1
        assert first < -0.15
