"""Refusal of checkpoints that do not fit, before anything of them is loaded."""

from __future__ import annotations

import pytest
import torch

from helpers.rollouts import text_learner
from lgym.modules import GRPO
from lgym.modules.checkpointing import CheckpointMismatchError, require_fitting, trained_state


def saved_checkpoint(module) -> dict:
    checkpoint = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    return checkpoint


def test_a_checkpoint_of_another_version_is_refused():
    module = text_learner(GRPO)
    checkpoint = saved_checkpoint(module)
    module.on_load_checkpoint(checkpoint)
    checkpoint["lgym"]["format"] = 1
    with pytest.raises(
        CheckpointMismatchError, match="has format 1, of another version of lgym; this one reads 8"
    ):
        module.on_load_checkpoint(checkpoint)


def test_a_checkpoint_has_to_fit():
    """Catches a checkpoint that is loaded in part: each of a missing tensor, another shape and one too many
    is enough."""
    module = text_learner(GRPO)
    state = trained_state(module, module.state_dict())
    first, *rest = state
    require_fitting(module, state, "tiny", "tiny")
    with pytest.raises(CheckpointMismatchError, match="trained on 'other' and the configuration says 'tiny'"):
        require_fitting(module, state, "other", "tiny")
    shape = r"\(" + ", ".join(map(str, state[first].shape)) + r",?\)"
    for changed, message in (
        (
            {name: state[name] for name in rest},
            f"1 tensors are missing, 0 have .* 0 are not wanted; {first}.* is nothing",
        ),
        (
            {**state, first: torch.zeros(1, 2, 3)},
            rf"0 tensors .* 1 have another shape, 0 are .*\(1, 2, 3\) there and {shape}",
        ),
        (
            {**state, "more": torch.zeros(2)},
            r"0 tensors .* 0 have .* 1 are not wanted; more.* is \(2,\) there and nothing",
        ),
    ):
        with pytest.raises(CheckpointMismatchError, match=message):
            require_fitting(module, changed, "tiny", "tiny")
