"""Settings of the libraries that torch computes with, which these read once.

On Intel's processors MKL sums a row of a product in an order that follows from the number of rows beside it.
Its strict mode does not, and is as quick, so that what comes out of frozen blocks can be kept in fp32.
"""

import os
import platform
import sys
from pathlib import Path


def configure_math_libraries() -> None:
    """Sets MKL's mode for this process and those that it starts, unless the user has set one.

    It does nothing where torch is imported already: one process would compute otherwise than another.
    """
    if "torch" not in sys.modules and _is_intel():
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def _is_intel() -> bool:
    processors = Path("/proc/cpuinfo")  # of Linux, which names the maker nowhere else
    try:
        return "GenuineIntel" in processors.read_text(encoding="utf-8")
    except OSError:
        return "GenuineIntel" in platform.processor()
