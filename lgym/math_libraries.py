"""Settings of the libraries that torch computes with, which these read once, when they are loaded.

Threads that wait for each other spin, by default for milliseconds, which is quickest on a machine with
nothing else to do. Where another program runs, a spinning thread takes the core on which the one that it
waits for could go on, and both are several times as slow.

On Intel's processors MKL sums a row of a product in an order that follows from the number of rows beside it.
Its strict mode does not, and is as quick, so that what comes out of frozen blocks can be kept in fp32.
"""

import os
import platform
import sys
from pathlib import Path

SPINNING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
"""Of GNU's OpenMP, which torch has on Linux: rounds, some 0.5 ms, longer than the threads of a product wait
for each other on a free machine. Of LLVM's and Intel's, as on macOS and Windows: milliseconds."""

SAME_ORDER = {"MKL_CBWR": "AUTO,STRICT"}

WAITING = (*SPINNING, "OMP_WAIT_POLICY")


def configure_math_libraries() -> None:
    """Sets these environment variables for this process and those that it starts, unless they are set.

    It does nothing where torch is imported already: one process would compute otherwise than another.
    """
    if "torch" in sys.modules:
        return
    if not any(name in os.environ for name in WAITING):
        os.environ.update(SPINNING)
    if _is_intel():
        for name, value in SAME_ORDER.items():
            os.environ.setdefault(name, value)


def _is_intel() -> bool:
    processors = Path("/proc/cpuinfo")  # of Linux, which names the maker nowhere else
    try:
        return "GenuineIntel" in processors.read_text(encoding="utf-8")
    except OSError:
        return "GenuineIntel" in platform.processor()
