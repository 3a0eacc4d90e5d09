"""`trainer.max_time`: the session ends in order with its last whole rollout, and the next has that time anew."""

from __future__ import annotations

import pytest
from lightning.pytorch.callbacks import Timer

from helpers.runs import assert_same_run, checkpoint, lgym, scalars
from lgym.callbacks import TimeLimit
from lgym.data.rollout.collector import Collector
from lgym.modules import PPO
from lgym.types import ConfigError

LIMITED = {"trainer__max_time": "00:01:00:00", "trainer__check_val_every_n_epoch": 9, "data__num_envs": 4}


@pytest.fixture
def clock(monkeypatch):
    """The seconds that have passed, for a test to set."""
    spent = [0.0]
    monkeypatch.setattr(TimeLimit, "time_elapsed", lambda self, stage="train": spent[0])
    return spent


def test_a_rollout_that_takes_too_long_is_dropped(tmp_path, model_folder, monkeypatch, clock, capsys):
    """Time is up in the third rollout: the run holds two, is evaluated, and goes on as if it had not stopped,
    with the time anew."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=4, **LIMITED)
    sound = Collector.play

    def play(self, policy, rng, **settings):
        if rng is not None and len(rollouts) < 3 and settings.get("progress") and self.first_seed < 2**30:
            rollouts.append(1)
            clock[0] = 3600.0 if len(rollouts) == 3 else 0.0
        return sound(self, policy, rng, **settings)

    rollouts: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "play", play)
        capsys.readouterr()
        lgym("fit", parts, model_folder, trainer__max_epochs=4, **LIMITED)
    said = capsys.readouterr().out
    assert len(rollouts) == 3
    assert checkpoint(parts)["epoch"] == 1
    assert "trainer.max_time (1:00:00) is over: the rollout at hand is dropped" in said
    assert "Ended by trainer.max_time (1:00:00), which a run that goes on has anew" in said
    assert "--ckpt_path last goes on from there" in said
    assert "Trained 2 rollouts" in said
    assert "this policy, sampled" in said
    assert len(scalars(parts)["val_sampled/return_mean"]) == 2  # at the start and at the end
    assert (parts / "version_0" / "adapter").is_dir()
    clock[0] = 0.0
    lgym("fit", parts, model_folder, trainer__max_epochs=4, ckpt_path="last", **LIMITED)
    assert checkpoint(parts)["epoch"] == 3
    assert_same_run(whole, parts, validated_alike=False)


def test_between_rollouts_the_run_stops_with_what_it_has(tmp_path, model_folder, monkeypatch, clock, capsys):
    """Time is up while the first rollout is learned: that is finished, and no other is begun."""
    sound = PPO.loss
    monkeypatch.setattr(
        PPO, "loss", lambda self, batch: (clock.__setitem__(0, 3600.0), sound(self, batch))[1]
    )
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=4, **LIMITED)
    said = capsys.readouterr().out
    assert checkpoint(tmp_path)["epoch"] == 0
    assert "Ended by trainer.max_time" in said
    assert "dropped" not in said


def test_time_that_ends_in_the_first_rollout_leaves_nothing(tmp_path, model_folder, clock, capsys):
    clock[0] = 3600.0
    lgym("fit", tmp_path, model_folder, **LIMITED)
    said = capsys.readouterr().out
    assert "No rollout was finished, so there is no checkpoint yet" in said
    assert "Trained 0 rollouts" in said
    assert "No evaluation was run" not in said
    assert not (tmp_path / "version_0" / "checkpoints" / "last.ckpt").exists()


def test_a_wrong_time_is_refused(tmp_path, model_folder):
    with pytest.raises(ConfigError, match="trainer.max_time is '15m'; write days:hours:minutes:seconds"):
        TimeLimit("15m")


def test_nothing_of_the_time_is_kept():
    """Lightning's timer would count the time before a run was resumed."""
    limit = TimeLimit("00:00:15:00")
    limit.load_state_dict(Timer("00:00:15:00").state_dict() | {"time_elapsed": {"train": 900.0}})
    assert limit.time_elapsed() == 0
    assert limit.state_dict() == {}
