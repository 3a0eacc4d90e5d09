"""Learning, end to end: the environment that rewards saying the shown word, and its control."""

from __future__ import annotations

from helpers.runs import QUICK, lgym, scalars

LEARN = {
    "trainer__max_epochs": 10,
    "trainer__check_val_every_n_epoch": 10,
    "data__episodes_per_rollout": 96,
    "data__num_envs": 32,
    "data__update_epochs": 8,
    "data__eval_episodes": 200,
    **QUICK,
}


def test_ppo_learns_to_say_the_word(tmp_path, model_folder):
    """Chance is 1/3. A loss of the wrong sign, credit on the wrong turn or a dead gradient stays there."""
    lgym("fit", tmp_path, model_folder, **LEARN)
    metrics = scalars(tmp_path)
    assert list(metrics["val_sampled/return_mean"].values())[-1] > 0.8
    assert list(metrics["rollout/return_mean"].values())[0] < 0.6


def test_with_the_sign_turned_round_it_does_not(tmp_path, model_folder):
    """The control: rewarded for any other word, the same run must end below chance."""
    lgym("fit", tmp_path, model_folder, **LEARN, data__env_kwargs='{"sign": -1}')
    metrics = scalars(tmp_path)
    assert list(metrics["rollout/return_mean"].values())[0] < -0.15  # at the start about chance: -1/3
    assert list(metrics["val_sampled/return_mean"].values())[-1] > -0.1  # it learned to say another word
