"""GRPO teaches the tiny model to say one of a few letters; turned-round rewards teach the opposite."""

from __future__ import annotations

import pytest

from helpers import runs
from helpers.letters import CONFIG


def curves(tmp_path, model_folder, **options):
    """Each metric of a run, rollout by rollout."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    runs.lgym("fit", tmp_path, model_folder, config, **options)
    return {name: [curve[step] for step in sorted(curve)] for name, curve in runs.scalars(tmp_path).items()}


def test_data_without_groups_is_refused_before_a_model_is_loaded(tmp_path, capsys):
    """The model's name is wrong too, and that is not what is complained about."""
    with pytest.raises(SystemExit):
        curves(tmp_path, "no-such-model", data__group_size=1)
    assert "set data.group_size to 2" in capsys.readouterr().err


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_grpo_learns_what_is_rewarded(tmp_path, model_folder, sign):
    """Random bytes name a vowel in about one of ten replies; the control is paid for avoiding them."""
    found = curves(tmp_path, model_folder, data__env_kwargs=f"{{sign: {sign}}}")
    first, last = (abs(found["rollout/return_mean"][i]) for i in (0, -1))
    assert 0.02 < first < 0.4
    if sign > 0:
        assert last > 0.9
    else:
        assert last < 0.02
    assert max(found["policy/logprob_diff_max"]) < 1e-3
