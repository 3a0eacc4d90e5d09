"""Gradient accumulation, for models whose minibatches must be small."""

from __future__ import annotations

import torch

from helpers.runs import checkpoint, lgym, scalars


def test_accumulated_minibatches_are_one_large_one(tmp_path, model_folder):
    """Three minibatches of one prompt each, accumulated, take the step of one minibatch with all three."""
    options = {
        "trainer__max_epochs": 1,
        "trainer__limit_val_batches": 0,
        "model__init_args__optimizer": "torch.optim.SGD",
        "model__init_args__optimizer__init_args__lr": 0.1,
        "model__init_args__value_warmup": 0,
        "model__init_args__target_kl": "null",
        "data__update_epochs": 1,
    }
    runs = {"whole": {"data__minibatch_size": 3}}
    runs["parts"] = {"data__minibatch_size": 1, "trainer__accumulate_grad_batches": 3}
    runs["steps"] = {"data__minibatch_size": 1}
    states, steps = {}, {}
    for name, chosen in runs.items():
        lgym("fit", tmp_path / name, model_folder, **options, **chosen)
        states[name] = checkpoint(tmp_path / name)["state_dict"]
        (steps[name],) = scalars(tmp_path / name)["optim/steps"].values()
    assert steps == {"whole": 1, "parts": 1, "steps": 3}
    for key, value in states["whole"].items():
        torch.testing.assert_close(states["parts"][key], value, rtol=1e-4, atol=1e-6)
    moved = [not torch.allclose(states["steps"][key], value, rtol=1e-4, atol=1e-6) for key, value in states["whole"].items()]
    assert any(moved), "three steps of one prompt each are not one step: the comparison above could not fail"


def test_steps_are_counted_per_rollout(tmp_path, model_folder):
    """The run's total would grow from rollout to rollout: 3 prompts, one a minibatch, two passes are 6 steps each time."""
    lgym(
        "fit", tmp_path, model_folder, trainer__max_epochs=3, trainer__limit_val_batches=0, data__minibatch_size=1,
        data__update_epochs=2, model__init_args__target_kl="null",
    )  # fmt: skip
    assert list(scalars(tmp_path)["optim/steps"].values()) == [6, 6, 6]
