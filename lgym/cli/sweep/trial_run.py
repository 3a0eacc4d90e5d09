"""A trial of a sweep: an ordinary run of `lgym fit`, watched from outside."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lgym.cli.run_metrics import read_scalars
from lgym.cli.runs import newest_run

POLL_SECONDS = 2.0
GRACE_SECONDS = 60.0
"""Time that a run has to end itself in order."""


class TrialFailedError(Exception):
    """A run that ended with an error."""


@dataclass
class TrialRun:
    """A run with some settings of its own. One that was begun before goes on from its last checkpoint.

    Attributes:
        config: the YAML.
        settings: those of the trial, by their names on the command line.
        root: `trainer.default_root_dir`.
        options: further ones of `fit`.
    """

    config: Path
    settings: Mapping[str, Any]
    root: Path
    options: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def command(self) -> list[str]:
        """Words of `lgym`."""
        own = [f"--{name}={json.dumps(value) if not isinstance(value, str) else value}"
               for name, value in self.settings.items()]  # fmt: skip
        place = ["--trainer.default_root_dir", str(self.root), "--ckpt_path", "auto"]
        return ["fit", "--config", str(self.config), *self.options, *own, *place]

    def reports(self, metric: str) -> Iterator[tuple[int, float]]:
        """Starts it, and yields a metric as it is logged: its number from 1, and the value.

        Raises:
            TrialFailedError: if the run ends with an error.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        known = 0
        with (self.root / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lgym.cli", *self.command], stdout=log, stderr=subprocess.STDOUT
            )
        while True:
            running = self._process.poll() is None
            values = self.values(metric)
            yield from ((number + 1, values[number]) for number in range(known, len(values)))
            known = len(values)
            if not running:
                break
            time.sleep(POLL_SECONDS)
        if self._process.returncode != 0:
            raise TrialFailedError(
                f"the run in {self.root} ended with status {self._process.returncode}; log.txt there says why"
            )

    def values(self, metric: str) -> list[float]:
        """A metric's values so far."""
        folder = newest_run(self.root)
        return [] if folder is None else [entry.value for entry in read_scalars(folder).get(metric, ())]

    def stop(self) -> None:
        """Ends it in order; at once, if that takes long."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
