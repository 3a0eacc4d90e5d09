"""Settings of the libraries that torch computes with, which these read once, when torch loads them.

On Intel's processors MKL sums a row of a product in an order that follows from the number of rows beside it.
Its strict mode does not, and is as quick, so that what comes out of frozen blocks can be kept in fp32.

OpenMP's threads wait for each other at the end of every operation, and spin meanwhile. Beside another
program one may have lost its core, and none that spins makes room for it: so they soon sleep, and at once
where another program is running when this one starts.
"""

import os
import platform
import sys
import time
from pathlib import Path

SHORT_WAITS = {
    "GOMP_SPINCOUNT": "1000",  # turns of a loop: GNU's OpenMP, in torch's builds for Linux
    "KMP_BLOCKTIME": "1",  # milliseconds of 200: Intel's and LLVM's, in those for macOS and Windows
}
NO_SPINNING = {"OMP_WAIT_POLICY": "passive"}
USERS_CHOICE = {*NO_SPINNING, *SHORT_WAITS}
LOOK_SECONDS = 0.05
"""Time for which the cores are looked at, before torch is loaded."""


def configure_math_libraries() -> None:
    """Sets MKL's mode and OpenMP's way of waiting for this process and those that it starts, each unless the
    user has set one.

    It does nothing where torch is imported already: one process would compute otherwise than another.
    """
    if "torch" in sys.modules:
        return
    if _is_intel():
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    if not USERS_CHOICE & os.environ.keys():
        os.environ.update(NO_SPINNING if _a_core_is_busy() else SHORT_WAITS)


def _a_core_is_busy() -> bool:
    """Check if other programs keep one of this process's cores from being idle, while this one sleeps; known
    on Linux alone."""
    try:
        before = _core_times()
        time.sleep(LOOK_SECONDS)
        after = _core_times()
    except (OSError, ValueError, AttributeError):
        return False
    spans = [[new - old for new, old in zip(after[core], before[core], strict=True)] for core in before]
    return any(2 * idle < total for idle, total in spans)


def _core_times() -> dict[str, tuple[int, int]]:
    """Ticks of each of this process's cores since the machine started: those in which it was idle or waited
    for a disk, and all (proc_stat(5))."""
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines()]
    ticks = {name: [int(count) for count in counts[:8]] for name, *counts in lines if name in cores}
    return {name: (counts[3] + counts[4], sum(counts)) for name, counts in ticks.items()}


def _is_intel() -> bool:
    processors = Path("/proc/cpuinfo")  # of Linux, which names the maker nowhere else
    try:
        return "GenuineIntel" in processors.read_text(encoding="utf-8")
    except OSError:
        return "GenuineIntel" in platform.processor()
