"""Bad input: one screen that names the value and the way out, before any long work."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from helpers import tiny
from helpers.echo import EchoAgent
from helpers.runs import checkpoint, lgym
from lgym.modules import PPO
from lgym.types import ConfigError, LgymError

BLACKJACK = Path(__file__).parents[2] / "configs" / "blackjack.yaml"
MODEL = "      model: smollm2-135m-instruct\n"  # its line there


@pytest.fixture
def failing(tmp_path, model_folder, capfd):
    """Runs a command that must fail, and returns what it said."""

    def run(command="fit", model=None, **options):
        with pytest.raises(SystemExit) as stop:
            lgym(command, tmp_path, model or model_folder, **options)
        assert stop.value.code not in (0, None)
        said = capfd.readouterr().err
        assert "Traceback" not in said
        assert len(said.strip().splitlines()) <= 24, said
        return said

    return run


def test_unknown_environment(failing):
    """With the names that are like it."""
    assert "Blackjack-v1" in failing(data__env="Blackjck-v1")


def test_unknown_model(failing, monkeypatch):
    """With the places that were looked at."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no waiting for a connection
    said = failing(model="no/such-model")
    assert "'no/such-model'" in said
    assert "a folder" in said
    assert "Hugging Face Hub" in said
    assert "HF_TOKEN" in said


def test_unknown_option(failing):
    """A misspelt key must not be ignored."""
    assert "num_evns" in failing(data__num_evns=3)


def test_a_key_that_stands_twice(failing, tmp_path):
    """YAML's parsers take the last: here the settings of `llm` would be gone. In a value of an option,
    likewise."""
    twice = tmp_path / "twice.yaml"
    twice.write_text(BLACKJACK.read_text().replace("    optimizer:\n", "    llm: {}\n    optimizer:\n"))
    said = failing(config=twice)
    assert "the key 'llm' stands twice in one place, in lines 13 and 15" in said
    assert "'agent' stands twice" in failing(data="{agent: lgym.agents.TaxiAgent, env: Taxi-v3, agent: null}")


def test_unknown_agent(failing):
    """With the name as it was given."""
    assert "lgym.agents.NoSuchAgent" in failing(data__agent="lgym.agents.NoSuchAgent")


def test_a_checkpoint_that_is_not_there(failing):
    """Lightning would start from scratch after a warning."""
    assert "no checkpoint under" in failing(ckpt_path="last")
    assert "no such file" in failing(ckpt_path="nowhere.ckpt")


def test_a_checkpoint_of_another_model(failing, tmp_path, model_folder):
    """Its adapters would load into the wrong layers, or not at all."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    other = tmp_path / "other-model"
    tiny.save(other)
    said = failing(model=other, ckpt_path="last", trainer__max_epochs=2)
    assert str(model_folder) in said
    assert str(other) in said
    said = failing(ckpt_path="last", model__init_args__llm__lora__r=2, trainer__max_epochs=2)
    assert "another shape" in said


def test_a_full_disk_is_said_before_it_costs_a_checkpoint(failing, tmp_path, model_folder, monkeypatch):
    """The last checkpoint must stay whole."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 0))
    said = failing(trainer__max_epochs=2, ckpt_path="last")
    assert "0 MB left" in said
    assert "--trainer.default_root_dir" in said
    assert checkpoint(tmp_path)["epoch"] == 0


def test_a_disk_that_fills_up_while_writing(failing, monkeypatch):
    """Between the look at the disk and the last byte, somebody else may have filled it."""

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    assert "the last checkpoint is whole" in failing()


def test_fewer_rollouts_than_the_checkpoint_has(failing, tmp_path, model_folder):
    """Lightning's own refusal, without its traceback."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=3)
    assert "max_epochs=1" in failing(trainer__max_epochs=1, ckpt_path="last")


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_evidence(failing, tmp_path, monkeypatch):
    """Training on would spoil the adapters; the turns are what one has to look at."""
    sound = PPO.loss

    def broken(self, batch):
        result = sound(self, batch)
        if self.trainer.current_epoch == 1 and result is not None:
            return result[0] * torch.nan, result[1]
        return result

    monkeypatch.setattr(PPO, "loss", broken)
    said = failing(trainer__max_epochs=3)
    assert "The loss is nan in rollout 2" in said
    kept = [
        json.loads(line)
        for line in (tmp_path / "version_0" / "non_finite_loss.jsonl").read_text().splitlines()
    ]
    assert kept[0]["candidates"] == ["red", "green", "blue"]
    assert len(kept[0]["choices"]) == len(kept[0]["advantages"]) > 0
    assert checkpoint(tmp_path)["epoch"] == 0
    assert all(torch.isfinite(t).all() for t in checkpoint(tmp_path)["state_dict"].values())


def test_quantized_weights_cannot_be_trained_whole(failing, tmp_path):
    """Raised when the YAML is read."""
    whole = tmp_path / "whole.yaml"
    settings = "      lora: null\n      quantization: 4bit\n"
    whole.write_text(BLACKJACK.read_text().replace(MODEL, MODEL + settings))
    assert "quantization: 4bit needs adapters" in failing(config=whole)


def test_a_wrong_value_names_the_option(failing):
    """Without the parser's account of every type that it tried."""
    said = failing(model__init_args__gamma="much")
    assert "gamma" in said
    assert "Given value: much" in said
    assert "NestedArg" not in said


def test_every_weight_in_bf16_is_refused(failing, tmp_path):
    """The optimizer's small steps would vanish."""
    whole = tmp_path / "whole.yaml"
    whole.write_text(BLACKJACK.read_text().replace(MODEL, MODEL + "      lora: null\n"))
    assert "32-true or bf16-mixed" in failing(config=whole, trainer__precision="bf16-true")


class BrokenAgent(EchoAgent):
    """An agent with a mistake in it."""

    def format_observation(self, observation) -> str:
        raise ValueError("a mistake of the user's own")


def test_a_mistake_of_the_users_own_agent_keeps_its_traceback(tmp_path, model_folder):
    """Catches one line that hides where in somebody's code the mistake is."""
    with pytest.raises(ValueError, match="a mistake of the user's own") as raised:
        lgym("fit", tmp_path, model_folder, data__agent="test_errors.BrokenAgent")
    assert raised.traceback[-1].path == Path(__file__)


def test_a_mistake_in_a_constructor_keeps_its_traceback(tmp_path, model_folder):
    """The parser raises an error of its own; that of the agent is its cause."""
    with pytest.raises(ValueError, match="too small") as raised:
        lgym("fit", tmp_path, model_folder, data__agent="test_errors.ProudAgent")
    causes = []
    cause = raised.value
    while cause is not None:
        causes.append(str(cause))
        cause = cause.__cause__
    assert "the world is too small" in causes[-1]


class ProudAgent(EchoAgent):
    """An agent that cannot be made."""

    def __init__(self) -> None:
        raise ValueError("the world is too small")


def test_a_refused_setting_is_one_message(failing):
    """With the way to the traceback, which it does not show."""
    said = failing(data__num_envs=0)
    assert "data.num_envs is 0; it must be 1 or more." in said
    assert "LGYM_DEBUG=1" in said


def test_the_traceback_of_a_refusal_can_be_asked_for(tmp_path, model_folder, monkeypatch):
    """And all of them are of one class, and `ValueError` for those who have caught that."""
    monkeypatch.setenv("LGYM_DEBUG", "1")
    with pytest.raises(LgymError, match=r"data\.num_envs is 0") as raised:
        lgym("fit", tmp_path, model_folder, data__num_envs=0)
    assert isinstance(raised.value, ConfigError)
    assert isinstance(raised.value, ValueError)
