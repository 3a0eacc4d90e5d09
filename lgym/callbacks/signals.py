"""Runs that are ended from outside: by a signal, by a cluster that takes its node back, by the death of rank
0."""

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

FIRST_PROCESS = "LGYM_FIRST_PROCESS"  # the environment variable with the id of a run's first process


class GracefulShutdown(L.Callback):
    """Ends a run at once and in order on SIGTERM, as Ctrl-C does. Its last checkpoint holds its last whole
    rollout.

    Under SLURM, its signal that the job will be requeued (SIGUSR1) does the same, after asking for that.
    Lightning would write a checkpoint there and then, in the middle of a rollout, from which no run could go
    on exactly.
    """

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.handle_signals(trainer)

    def handle_signals(self, trainer: L.Trainer) -> None:
        """Take the place of Lightning's handlers; the command line does so before anything is played."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python receives signals there alone
        signal.signal(signal.SIGTERM, _interrupt)  # Lightning puts back afterwards what was there before
        environment = trainer._accelerator_connector.cluster_environment
        if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
            signal.signal(environment.requeue_signal or signal.SIGUSR1, _requeue)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _requeue(number: int, frame: Any) -> None:
    request_requeue()
    _interrupt(number, frame)


@rank_zero_only
def request_requeue() -> None:
    """Asks SLURM to put the job, or its part of an array, into the queue again."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]
    done = subprocess.run(["scontrol", "requeue", job], check=False)
    print(f"lgym: asked SLURM to requeue job {job}: status {done.returncode}.", file=sys.stderr)


def follow_first_process() -> None:
    """Ends this process within a second of the run's first one, if that has started it.

    It may be waiting for the first one, or playing, and so notice nothing for long. Called before anything
    else is done; torchrun and SLURM see to it themselves.
    """
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank == "0":
        os.environ[FIRST_PROCESS] = str(os.getpid())
    elif FIRST_PROCESS in os.environ and not os.environ.keys() & {"TORCHELASTIC_RUN_ID", "SLURM_PROCID"}:
        threading.Thread(target=_end_with, args=(int(os.environ[FIRST_PROCESS]), rank), daemon=True).start()


def _end_with(first: int, rank: str) -> None:
    while os.getppid() == first:
        time.sleep(1.0)
    print(f"lgym: the run's first process ({first}) is gone; process {rank} ends too.", file=sys.stderr)
    os._exit(1)
