"""What a run says at its end."""

from __future__ import annotations

import pytest

from helpers import lock  # noqa: F401  (registers the environment)
from helpers.runs import lgym, scalars
from lgym.callbacks.summary import ALIKE, LOOPING, greedy_notes


def test_a_run_that_stops_between_evaluations_is_evaluated(tmp_path, model_folder):
    """`trainer.max_steps` ends a run where nobody can foresee it: at the start, after 2 rollouts, at the end."""
    lgym(
        "fit",
        tmp_path,
        model_folder,
        trainer__max_steps=13,
        trainer__max_epochs=9,
        trainer__check_val_every_n_epoch=2,
    )
    assert len(scalars(tmp_path)["val_sampled/return_mean"]) == 3


def test_validate_prints_the_result_once(tmp_path, model_folder, capsys):
    """Lightning's own table would repeat it with every column twice."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    capsys.readouterr()
    lgym("validate", tmp_path, model_folder, ckpt_path="last")
    out = capsys.readouterr().out
    assert out.count("this policy, greedy") == 1
    assert "DataLoader" not in out


@pytest.mark.parametrize(
    ("greedy", "sampled_mean", "expected"),
    [
        ((-200.0, 0.0, 0.0, 0.0), -200.0, [ALIKE]),
        ((0.0, 0.0, 0.0, 1.0), 0.1, [ALIKE, LOOPING.format(1.0)]),
        ((0.3, 0.1, 8.0, 0.97), 0.5, [LOOPING.format(0.97)]),
        ((500.0, 0.0, 0.0, 1.0), 480.0, [ALIKE]),  # going in circles is the task
        ((0.3, 0.1, 8.0, 0.0), 0.5, []),
        ((1.0, float("inf"), 0.0, 0.0), 1.0, []),  # one episode
        ((1.0, 0.0, 2.0, 0.0), 1.0, []),
    ],
)
def test_greedy_episodes_that_repeat_something_are_named(greedy, sampled_mean, expected):
    """Interval, lengths and circles of greedy episodes. A return of 0.93 in each of a hundred has an interval
    of a rounding error's width."""
    names = ("return_mean", "return_ci95", "length_std", "looping_rate")
    metrics = {f"val_greedy/{name}": value for name, value in zip(names, greedy, strict=True)}
    assert greedy_notes({**metrics, "val_sampled/return_mean": sampled_mean}, "val") == expected
    assert greedy_notes({**metrics, "val_sampled/return_mean": sampled_mean}, "test") == []


def test_an_evaluation_that_repeats_itself_says_so(tmp_path, model_folder, capsys):
    """A lock with one start, whose greedy policy plays the same twelve turns whatever the seed."""
    lgym(
        "validate",
        tmp_path,
        model_folder,
        data__env="Lock-v0",
        data__agent="helpers.lock.LockAgent",
        data__episodes_per_rollout=8,
    )
    assert ALIKE in capsys.readouterr().out
