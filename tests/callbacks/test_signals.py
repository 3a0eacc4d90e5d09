"""Runs that end from outside: their process is sent a signal, or their first process is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import psutil
import pytest

from helpers.runs import checkpoint, lgym
from lgym.data.rollout.collector import Collector
from lgym.modules import PPO

HERE = Path(__file__).parent.parent
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # ignored where a run does not see to them
CONFIG = """
trainer: {{accelerator: cpu, enable_progress_bar: false, max_epochs: 100000, check_val_every_n_epoch: 100000}}
model: {{class_path: lgym.modules.PPO, init_args: {{llm: {{model: {model}, lora: {{r: 4}}, value_hidden_size: 16}}}}}}
data:
  env: helpers.echo:Echo-v0
  agent: helpers.echo.EchoAgent
  num_envs: 8
  episodes_per_rollout: 32
"""


def lives(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def ignored():
    """The signals do nothing to the tests' own process."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def ended_by(tmp_path, model_folder, monkeypatch, capfd, ignored):
    """Starts a run, sends its process a signal in mid-update of the second rollout; what it said."""
    sound = PPO.loss

    def ended_by(number: int) -> str:
        def signalled(self, batch):
            if self.trainer.current_epoch == 1:
                os.kill(os.getpid(), number)
            return sound(self, batch)

        monkeypatch.setattr(PPO, "loss", signalled)
        with pytest.raises(SystemExit) as end:
            lgym("fit", tmp_path, model_folder, trainer__max_epochs=3)
        assert end.value.code == 1
        assert checkpoint(tmp_path)["epoch"] == 0
        said = capfd.readouterr()
        return said.out + said.err

    return ended_by


HOLDS = "holds the run after its last whole rollout; --ckpt_path last goes on from there"


def test_sigterm_ends_a_run_in_order(ended_by):
    """A preempted node gives half a minute; Lightning by itself would go on to the end of a minibatch, or of
    the playing."""
    assert HOLDS in ended_by(signal.SIGTERM)


@pytest.mark.parametrize("play", [1, 3], ids=["first-evaluation", "first-rollout"])
def test_sigterm_ends_a_run_before_its_first_step(tmp_path, model_folder, monkeypatch, capsys, ignored, play):
    """Lightning only takes note of it there: the play went on to its end, and the status was that of a run
    that is done."""
    sound, plays = Collector.play, count(1)

    def signalled(*arguments, **settings):
        if next(plays) == play:
            os.kill(os.getpid(), signal.SIGTERM)
        return sound(*arguments, **settings)

    monkeypatch.setattr(Collector, "play", signalled)
    with pytest.raises(SystemExit) as end:
        lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    assert end.value.code == 1
    assert "Interrupted. No rollout was finished" in capsys.readouterr().out


@pytest.mark.parametrize("subcommand", ["validate", "test"])
def test_sigterm_ends_an_evaluation(tmp_path, model_folder, monkeypatch, capsys, ignored, subcommand):
    """Its output just stopped: neither a figure, nor a word about why there is none."""
    monkeypatch.setattr(
        Collector, "play", lambda *arguments, **settings: os.kill(os.getpid(), signal.SIGTERM)
    )
    with pytest.raises(SystemExit) as end:
        lgym(subcommand, tmp_path, model_folder)
    assert end.value.code == 1
    assert "Interrupted before the end." in capsys.readouterr().out


@pytest.mark.slow
def test_sigterm_ends_a_process(tmp_path, model_folder):
    """At any time after its first checkpoint, as a process of its own."""
    config, root = tmp_path / "run.yaml", tmp_path / "runs"
    config.write_text(CONFIG.format(model=model_folder))
    process = subprocess.Popen(
        [sys.executable, "-m", "lgym.cli", "fit", f"--config={config}", f"--trainer.default_root_dir={root}"],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    last = root / "version_0" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 120
    while not last.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert HOLDS in said
    assert checkpoint(root)["epoch"] >= 0


def test_slurms_signal_asks_for_requeueing(ended_by, tmp_path, monkeypatch):
    """And leaves no checkpoint of the middle of a rollout, which Lightning would resume from before any
    other."""
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho $@ > {tmp_path}/asked\n")
    scontrol.chmod(0o755)
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "lake", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    node = {"SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_NODELIST": "localhost"}
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    for name, value in {**job, **node, **path, **meeting}.items():
        monkeypatch.setenv(name, value)
    said = ended_by(signal.SIGUSR1)
    assert (tmp_path / "asked").read_text().split() == ["requeue", "42"]
    assert "asked SLURM to requeue job 42: status 0" in said
    assert not list(tmp_path.rglob("hpc_ckpt*"))


def test_a_process_whose_first_one_is_gone_ends_too(tmp_path, model_folder):
    """It would wait for half an hour at the place where they were to meet."""
    config, log = tmp_path / "run.yaml", tmp_path / "log"
    config.write_text(CONFIG.format(model=model_folder))
    fit = [sys.executable, "-m", "lgym.cli", "fit", f"--config={config}", "--trainer.devices=2"]
    first = (
        f"import os, subprocess; os.environ['LGYM_FIRST_PROCESS'] = str(os.getpid()); "
        f"print(subprocess.Popen({fit}, stderr=open({str(log)!r}, 'w')).pid)"
    )
    meeting = {
        "LOCAL_RANK": "1",
        "NODE_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "9",
    }
    command = [sys.executable, "-c", first]
    done = subprocess.run(
        command, cwd=HERE, env={**os.environ, **meeting}, stdout=subprocess.PIPE, text=True, check=True
    )
    second, begun = int(done.stdout.split()[0]), time.monotonic()
    while "is gone; process 1 ends too" not in log.read_text() and time.monotonic() - begun < 120:
        time.sleep(0.2)
    while lives(second) and time.monotonic() - begun < 120:
        time.sleep(0.2)
    assert "is gone; process 1 ends too" in log.read_text()
    assert not lives(second)
