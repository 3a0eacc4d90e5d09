"""Which test files `scripts/mutate.py` asks about a file: by their imports, read and not run."""

from __future__ import annotations

import ast
import math
from collections import deque
from functools import cache
from pathlib import Path


class ImportGraph:
    """The imports of a package and its tests. What a package's `__init__` only passes on counts as taken from
    its source."""

    def __init__(self, root: Path, package: str) -> None:
        self.root, self.package, self.tests = root, root / package, root / "tests"
        self.of = cache(self._of)

    def tests_of(self, file: Path) -> list[str]:
        """Those of the mirror folder that reach the file, and all that name it; nearest first, its own before
        others."""
        mirror = self.tests / file.parent.relative_to(self.package)
        found: list[tuple[float, bool, str]] = []
        for test in sorted(self.tests.rglob("test_*.py")):
            distance = self._distances(test).get(file)
            if distance is not None and (distance == 1 or test.parent == mirror):
                found.append((distance, test.parent != mirror, test.relative_to(self.root).as_posix()))
        return [test for *_, test in sorted(found)]

    def _distances(self, test: Path) -> dict[Path, float]:
        """How many imports the files of the package are away; through helpers of the tests costs nothing."""
        distances: dict[Path, float] = {test: 0}
        waiting = deque([test])
        while waiting:
            file = waiting.popleft()
            for other in self.of(file):
                step = 0 if other.is_relative_to(self.tests) else 1
                if distances[file] + step < distances.get(other, math.inf):
                    distances[other] = distances[file] + step
                    (waiting.append if step else waiting.appendleft)(other)
        return distances

    def _of(self, file: Path) -> frozenset[Path]:
        found: set[Path | None] = set()
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {self._file(alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {self._source(node.module, alias.name) for alias in node.names}
        return frozenset(path for path in found if path and path != file)

    def _file(self, module: str) -> Path | None:
        places = (base.joinpath(*module.split(".")) for base in (self.root, self.tests))
        options = [option for place in places for option in (place.with_suffix(".py"), place / "__init__.py")]
        return next((option for option in options if option.exists()), None)

    def _source(self, module: str, name: str) -> Path | None:
        """The file that a name is taken from."""
        if submodule := self._file(f"{module}.{name}"):
            return submodule
        file = self._file(module)
        if file and file.name == "__init__.py":
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.ImportFrom) and node.module and node.module != module:
                    for alias in node.names:
                        if (alias.asname or alias.name) == name:
                            return self._source(node.module, alias.name)
        return file
