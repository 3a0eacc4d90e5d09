"""Refusal of senseless settings, with their names, values and the way out."""

from __future__ import annotations

import pytest

from lgym.modules import A2C, PPO, CriticConfig, GiGPO, LossConfig, SFTConfig


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (LossConfig, {"clip_low": None}, "give both"),
        (LossConfig, {"clip_low": 0.0}, "clip_low is 0.0; it must lie between 0 and 1"),
        (LossConfig, {"clip_low": 1.0}, "clip_low is 1.0; it must lie between 0 and 1"),
        (LossConfig, {"clip_low": 1.2}, "clip_low is 1.2"),
        (LossConfig, {"clip_high": 0.0}, "clip_high is 0.0"),
        (LossConfig, {"target_kl": 0.0}, "target_kl is 0.0"),
        (LossConfig, {"entropy_coef": -1.0}, "entropy_coef is -1.0"),
        (LossConfig, {"old_kl_coef": -1.0}, "old_kl_coef is -1.0"),
        (LossConfig, {"kl_coef": -1.0}, "kl_coef is -1.0"),
        (LossConfig, {"kl_coef": 0.1, "kl_estimator": "k1"}, "k1 has no gradient"),
        (LossConfig, {"kl_in": "reward", "kl_estimator": "k2"}, "k2 in the rewards does not pull"),
        (LossConfig, {"kl_in": "reward", "kl_estimator": "k3"}, "choose k1, or set kl_in: loss"),
        (LossConfig, {"kl_estimator": "k9"}, "kl_estimator is 'k9'; choose one of k1, k2, k3"),
        (LossConfig, {"kl_in": "rewards"}, "kl_in is 'rewards'; choose one of loss, reward"),
        (
            LossConfig,
            {"loss_aggregation": "sentence"},
            "loss_aggregation is 'sentence'; choose one of sequence_mean, token_mean, max_length",
        ),
        (CriticConfig, {"value_coef": -0.5}, "value_coef is -0.5; it must be 0 or more"),
        (CriticConfig, {"value_coef": float("inf")}, "value_coef is inf"),
        (CriticConfig, {"value_lr_scale": 0.0}, "value_lr_scale is 0.0"),
        (CriticConfig, {"value_clip": -1.0}, "value_clip is -1.0"),
        (CriticConfig, {"value_warmup": -1}, "value_warmup is -1"),
        (SFTConfig, {"rollouts": -1}, "rollouts is -1"),
        (SFTConfig, {"coef": -1.0}, "coef is -1.0"),
        (SFTConfig, {"epochs": 0}, "epochs is 0"),
        (PPO, {"gamma": 1.5}, "gamma is 1.5"),
        (PPO, {"gae_lambda": -0.1}, "gae_lambda is -0.1"),
        (PPO, {"advantage_level": "word"}, "advantage_level is 'word'; choose one of turn, token"),
        (A2C, {"gamma": 1.5}, "gamma is 1.5"),
        (GiGPO, {"step_weight": -1.0}, "step_weight is -1.0"),
    ],
)
def test_senseless_settings_are_refused(config, settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)
