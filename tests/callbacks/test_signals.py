"""Runs that end from outside, as a process of their own that is sent a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers.runs import checkpoint

HERE = Path(__file__).parent.parent
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
def run(tmp_path, model_folder):
    """Starts a run, waits for its first checkpoint, sends it a signal; what it said."""
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG.format(model=model_folder))
    root = tmp_path / "runs"

    def ended_by(number: int, **changes: str) -> str:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "lgym.cli",
                "fit",
                f"--config={config}",
                f"--trainer.default_root_dir={root}",
            ],
            cwd=HERE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        last = root / "version_0" / "checkpoints" / "last.ckpt"
        deadline = time.monotonic() + 120
        while not last.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 1, said
        assert checkpoint(root)["epoch"] >= 0
        return said

    return ended_by


def test_sigterm_ends_a_run_in_order(run, tmp_path):
    """A preempted node gives half a minute; Lightning by itself would go on to the end of a minibatch, or of
    the playing."""
    assert "holds the run after its last whole rollout; --ckpt_path last goes on from there" in run(
        signal.SIGTERM
    )


def test_slurms_signal_asks_for_requeueing(run, tmp_path):
    """And leaves no checkpoint of the middle of a rollout, which Lightning would resume from before any
    other."""
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho $@ > {tmp_path}/asked\n")
    scontrol.chmod(0o755)
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "lake", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    node = {"SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_NODELIST": "localhost"}
    said = run(signal.SIGUSR1, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", **job, **node)
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
    while "is gone; process 1 ends too" not in log.read_text() and time.monotonic() - begun < 60:
        time.sleep(0.2)
    while lives(second) and time.monotonic() - begun < 60:
        time.sleep(0.2)
    assert "is gone; process 1 ends too" in log.read_text()
    assert not lives(second)
