"""The profiler of lgym's own phases."""

import time

import torch
from lightning.pytorch.profilers import Profiler

from lgym.phases import seconds_by_phase, wait_for_device

RECORDS = "texts, tokens and records"
OWN_PART = {"playing": RECORDS, "evaluating": RECORDS, "learning": "steps"}
"""Names for the time of a phase outside of its parts."""


class PhaseProfiler(Profiler):
    """Prints at the end of a run what its time was spent on: `lgym fit --trainer.profiler phases`.

    A GPU is waited for at the end of every phase, which costs some of its speed.
    """

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        super().setup(stage, local_rank, log_dir)
        if torch.accelerator.is_available():
            wait_for_device(torch.accelerator.synchronize)
        self._began, self._before = time.perf_counter(), seconds_by_phase()

    def start(self, action_name: str) -> None:
        """Nothing: Lightning's actions are not lgym's phases."""

    def stop(self, action_name: str) -> None:
        """Nothing, likewise."""

    def summary(self) -> str:
        """A line for each phase and part, with its seconds and its share of the time since `setup`."""
        whole = time.perf_counter() - self._began
        spent = {name: s - self._before.get(name, 0.0) for name, s in seconds_by_phase().items()}
        rows = []
        for name in dict.fromkeys(name.partition("/")[0] for name in spent):
            parts = {part.partition("/")[2]: s for part, s in spent.items() if part.startswith(f"{name}/")}
            rows.append((name, spent.get(name, 0.0) + sum(parts.values())))
            if parts:
                parts[OWN_PART.get(name, "the rest")] = spent.get(name, 0.0)
            rows += [(f"  {part}", s) for part, s in parts.items()]
        rows += [("all else", whole - sum(spent.values())), ("whole run", whole)]
        lines = [f"{name:<30}{seconds:>10.1f}{seconds / whole:>8.0%}" for name, seconds in rows]
        return "\n".join(["", f"{'phase':<30}{'seconds':>10}{'share':>8}", *lines])

    def teardown(self, stage: str | None) -> None:
        wait_for_device(None)
        super().teardown(stage)
