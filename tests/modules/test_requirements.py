"""What is refused before anything is learned, and what is not; and numbers of a rollout over several processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lgym.modules.pooled import pooled

from lgym import distributed
from lgym.modules import GRPO, RLOO, GiGPO, TokenLoss
from lgym.modules.checkpointing import CheckpointMismatchError, require_fitting, trained_state
from lgym.modules.schedules import WarmupCosine
from modules.test_text_algorithms import learner


@pytest.mark.parametrize("algorithm", [GRPO, RLOO, GiGPO])
def test_groups_of_one_are_refused_before_a_model_is_loaded(algorithm):
    """Catches an algorithm that finds out after its first rollout; evaluation needs no groups."""
    module = learner(algorithm)
    module.trainer = SimpleNamespace(datamodule=SimpleNamespace(group_size=1))
    with pytest.raises(ValueError, match=f"{algorithm.__name__} compares episodes.*group_size to 2"):
        module.setup("fit")
    module.setup("validate")
    module.trainer = SimpleNamespace(datamodule=SimpleNamespace(group_size=2))
    module.setup("fit")


@pytest.mark.parametrize("low", [0.0, 1.0])
def test_bounds_are_outside(low):
    """Catches a clip of 0, which stops all learning downwards, and one of 1, which clips nothing, let through."""
    with pytest.raises(ValueError, match=f"clip_low is {low}; it must lie between 0 and 1"):
        TokenLoss(clip_low=low)


def test_a_schedule_may_stay_at_the_full_rate():
    """Catches a final share of 1 that is refused: after the warm-up, 1/2, it is 1 to the end."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = WarmupCosine(optimizer, warmup=1, total=3, final=1.0)
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_a_checkpoint_has_to_fit():
    """Catches a checkpoint that is loaded in part: each of what is missing, has another shape or is not wanted is enough."""
    module = learner(GRPO)
    state = trained_state(module, module.state_dict())
    first, *rest = state
    require_fitting(module, state, "tiny", "tiny")
    with pytest.raises(CheckpointMismatchError, match="trained on 'other' and the configuration says 'tiny'"):
        require_fitting(module, state, "other", "tiny")
    shape = r"\(" + ", ".join(map(str, state[first].shape)) + r",?\)"
    for changed, message in (
        ({name: state[name] for name in rest}, f"1 tensors are missing, 0 have .* 0 are not wanted; {first}.* is nothing"),
        (
            {**state, first: torch.zeros(1, 2, 3)},
            rf"0 tensors .* 1 have another shape, 0 are .*\(1, 2, 3\) there and {shape}",
        ),
        ({**state, "more": torch.zeros(2)}, r"0 tensors .* 0 have .* 1 are not wanted; more.* is \(2,\) there and nothing"),
    ):
        with pytest.raises(CheckpointMismatchError, match=message):
            require_fitting(module, changed, "tiny", "tiny")


def test_numbers_of_several_processes(monkeypatch):
    """Catches counts that are averaged, a gap that is hidden by a smaller one, and means that do not weigh by their turns or
    episodes; a metric that one process alone has is its own."""
    one = {"rollout/turns": 30.0, "rollout/episodes": 1.0, "policy/logprob_diff_max": 0.5, "rollout/return_mean": 4.0}
    two = {"rollout/turns": 10.0, "rollout/episodes": 3.0, "policy/logprob_diff_max": 0.1, "rollout/return_mean": 8.0}
    both = [{**one, "rollout/parse_rate": 1.0}, {**two, "rollout/parse_rate": 0.2, "policy/action_state_mi": 0.7}]
    monkeypatch.setattr(distributed, "all_gather_object", lambda own: both)
    assert pooled(both[0]) == pytest.approx(
        {
            "rollout/turns": 40.0,
            "rollout/episodes": 4.0,
            "policy/logprob_diff_max": 0.5,
            "rollout/return_mean": 7.0,  # (1 * 4 + 3 * 8) / 4
            "rollout/parse_rate": 0.8,  # (30 * 1 + 10 * 0.2) / 40
            "policy/action_state_mi": 0.7,
        }
    )
