"""Settings of the libraries that torch computes with, which these read once, when torch loads them.

On Intel's processors MKL sums a row of a product in an order that follows from the number of rows beside it.
Its strict mode does not, and is as quick, so that what comes out of frozen blocks can be kept in fp32.

OpenMP's threads wait for each other at the end of every operation, and spin meanwhile. Beside another
program one may have lost its core, and none that spins makes room for it: so they soon sleep.
"""

import os
import platform
import sys
from pathlib import Path

SHORT_WAITS = {
    "GOMP_SPINCOUNT": "1000",  # turns of a loop: GNU's OpenMP, in torch's builds for Linux
    "KMP_BLOCKTIME": "1",  # milliseconds of 200: Intel's and LLVM's, in those for macOS and Windows
}
USERS_CHOICE = {"OMP_WAIT_POLICY", *SHORT_WAITS}


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
        os.environ.update(SHORT_WAITS)


def _is_intel() -> bool:
    processors = Path("/proc/cpuinfo")  # of Linux, which names the maker nowhere else
    try:
        return "GenuineIntel" in processors.read_text(encoding="utf-8")
    except OSError:
        return "GenuineIntel" in platform.processor()
