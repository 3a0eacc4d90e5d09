"""A rollout's peculiarities, in words."""

from __future__ import annotations

import pytest

from helpers.runs import QUICK, lgym
from test_resume import COUNTING


def test_no_episode_has_ended_yet(tmp_path, model_folder, capsys):
    """24 turns in each of 8 environments are 3 of 5: in the second rollout episodes end."""
    options = {**COUNTING, "trainer__enable_progress_bar": "true", "trainer__max_epochs": 2}
    lgym("fit", tmp_path, model_folder, **options)
    said = capsys.readouterr()
    assert "Rollout 1: no episode has ended yet, in 24 turns." in said.out
    assert "Rollout 2: no episode" not in said.out
    assert "return=no episode has ended yet" in said.err


@pytest.mark.parametrize(("old_kl_coef", "words"), [(0.1, "left out the policy's part of"), (0, "skipped")])
def test_the_brake_in_words(tmp_path, model_folder, capsys, old_kl_coef, words):
    """With a limit that each step but the first crosses: it is said once."""
    loss = f'{{"target_kl": 1e-9, "old_kl_coef": {old_kl_coef}}}'
    options = {**QUICK, "model__init_args__loss": loss, "model__init_args__critic": '{"value_warmup": 0}'}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **options)
    said = capsys.readouterr().out
    assert f"Rollout 1: the brake (target_kl) {words} 3 of 4 steps;" in said
    assert said.count("the brake") == 1


def test_nothing_has_come_to_imitate(tmp_path, model_folder, capsys):
    """No episode returns 2; a run that learns nothing shall not look like one that does."""
    settings = {
        **QUICK,
        "model__init_args__sft__rollouts": 1,
        "data__self_imitation": '{"top_fraction": 1.0, "min_return": 2.0}',
    }
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **settings)
    said = capsys.readouterr().out
    assert "Rollout 1: nothing to imitate has come so far, and nothing was learned" in said
    assert "Rollout 2: nothing" not in said


def test_a_run_that_needs_no_words(tmp_path, model_folder, capsys):
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, **QUICK)
    said = capsys.readouterr().out
    assert "no episode" not in said
    assert "brake" not in said
    assert "nothing" not in said
