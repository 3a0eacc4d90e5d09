"""Which lines of a package each test runs, and how long it takes."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import pytest


class Watch:
    """A pytest plugin; its `trace` is for `sys.settrace`."""

    def __init__(self, package: Path) -> None:
        self.package = str(package) + os.sep
        self.seconds: dict[str, float] = defaultdict(float)
        self.lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.test = (
            ""  # what no test runs by itself is for all of them: imports, and fixtures that several share
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        self.test = item.nodeid
        try:
            return (yield)
        finally:
            self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(self.package):
            return None
        self.lines[self.test][file[len(self.package) :]].add(frame.f_lineno)
        return self.trace

    def told(self) -> dict[str, tuple[float, dict[str, list[int]]]]:
        """Of each test, for JSON."""
        found = {}
        for test, seconds in self.seconds.items():
            files = self.lines[""].keys() | self.lines[test].keys()
            found[test] = (
                seconds,
                {file: sorted(self.lines[""][file] | self.lines[test][file]) for file in files},
            )
        return found
