"""Runs that end from outside: by a signal, by a cluster that takes its node back, by the death of their first process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import lightning as L
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities import rank_zero_only

FIRST = "LGYM_FIRST_PROCESS"
"""The environment variable in which the first process of a run tells those that it starts who it is."""


class GracefulShutdown(L.Callback):
    """On SIGTERM, ends a run at once and in order, as Ctrl-C does. Its last checkpoint holds its last whole rollout.

    Under SLURM, its signal that the job will be requeued (SIGUSR1) does the same, after asking for that. Lightning would
    write a checkpoint there and then, in the middle of a rollout, from which no run could go on exactly.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signalled: str | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python hears signals there alone
        signal.signal(signal.SIGTERM, self._end)  # Lightning puts back afterwards what was there before
        environment = trainer._accelerator_connector.cluster_environment
        if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
            signal.signal(environment.requeue_signal or signal.SIGUSR1, self._requeue)

    def _end(self, number: int, frame: Any) -> None:
        self.signalled = signal.Signals(number).name
        raise KeyboardInterrupt(self.signalled)

    def _requeue(self, number: int, frame: Any) -> None:
        request_requeue()
        self._end(number, frame)


@rank_zero_only
def request_requeue() -> None:
    """Asks SLURM to put the job, or its part of an array, into the queue again."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]
    done = subprocess.run(["scontrol", "requeue", job], check=False)
    print(f"lgym: asked SLURM to requeue job {job}: status {done.returncode}.", file=sys.stderr)


def follow_first_process() -> None:
    """Ends this process within a second of the run's first one, if that has started it: it may be waiting for that one, or
    playing, and so notice nothing for long. Called before anything else is done; torchrun and SLURM see to it themselves."""
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank == "0":
        os.environ[FIRST] = str(os.getpid())
    elif FIRST in os.environ and not os.environ.keys() & {"TORCHELASTIC_RUN_ID", "SLURM_PROCID"}:
        threading.Thread(target=_end_with, args=(int(os.environ[FIRST]), rank), daemon=True).start()


def _end_with(first: int, rank: str) -> None:
    while os.getppid() == first:
        time.sleep(1.0)
    print(f"lgym: the run's first process ({first}) is gone; process {rank} ends too.", file=sys.stderr)
    os._exit(1)
