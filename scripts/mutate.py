"""Changes one line at a time and runs the tests: lists what no test notices, and its share.

    python scripts/mutate.py                                    # lgym/functional, lgym/modules and lgym/data
    python scripts/mutate.py lgym/functional/gae.py --list      # only what would be changed
    python scripts/mutate.py lgym/modules --sample 120 --seed 0 --json mutants.json

A change (see `mutants.py`) is noticed where a test fails or does not end. Asked are the test files in the
mirror of the file's folder under tests/ that reach it by imports, and those anywhere else that name it, or a
name that it defines. They run once without a change; one that fails then, or takes too long, is left out and
named. Of their tests those are asked that ran the changed statement, in their own process: the nearest first,
as many as `--budget` has seconds for.

Each change is tried in a fork of a process that has imported what the tests need of other libraries, and
nothing of the checkout: the fork finds the changed package in a copy. Linux and macOS only.

Not done by mutmut, which leaves decorated functions alone (`gae` and all else under `torch.no_grad()`), nor
by cosmic-ray, which starts Python anew for each change: importing torch and transformers takes longer than
the tests.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork has no other threads than the one that made it

import pytest
from tqdm import tqdm

from equivalents import EQUIVALENT
from import_graph import ImportGraph
from mutants import Mutant, mutants_of
from tracing import Watch

PATHS = ("lgym/functional", "lgym/modules", "lgym/data")


@dataclass(frozen=True)
class Unchanged:
    """What a test did without a change."""

    name: str
    seconds: float
    lines: dict[str, set[int]]  # of each file of the package, those that it ran

    def runs(self, mutant: Mutant) -> bool:
        return not self.lines.get(mutant.file, set()).isdisjoint(mutant.lines)


@dataclass(frozen=True)
class Result:
    """What became of a change."""

    mutant: Mutant
    outcome: str  # killed, survived or equivalent
    tests: list[str]
    seconds: float


class Runner:
    """Runs test files in forks, on a copy of the package."""

    def __init__(self, root: Path, package: str, copy: Path) -> None:
        self.root, self.package, self.copy = root, package, copy
        shutil.copytree(root / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(copy, quiet=2)

    def unchanged(self, file: str, limit: float) -> list[Unchanged] | str:
        """What a file's tests do, or why they cannot be asked. Afterwards this process has imported what they
        needed."""
        report = self.copy / "report.json"
        report.unlink(missing_ok=True)

        def work() -> int:
            watch = Watch(self.copy / self.package)
            threading.settrace(watch.trace)
            sys.settrace(watch.trace)
            status = self._tests([file], watch)
            sys.settrace(None)
            report.write_text(json.dumps({"tests": watch.told(), "modules": self._others()}))
            return status

        status = in_fork(work, limit)
        if status != 0:
            why = {None: f"takes more than {limit:.0f} s", 5: "has no test"}
            return why.get(status, "fails without a change")
        told = json.loads(report.read_text())
        for name in told["modules"]:
            with suppress(ImportError, AttributeError):  # some exist only within another
                importlib.import_module(name)
        found = []
        for name, (seconds, files) in told["tests"].items():
            found.append(
                Unchanged(
                    name, seconds, {f"{self.package}/{own}": set(lines) for own, lines in files.items()}
                )
            )
        return sorted(found, key=lambda test: test.seconds)

    def is_noticed(self, mutant: Mutant, tests: list[str], limit: float) -> bool:
        """Whether one of the tests fails, or does not end in time."""
        file = self.copy / mutant.file
        original = file.read_bytes()
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()
        file.write_text(mutant.source, encoding="utf-8")
        try:
            return in_fork(lambda: self._tests(tests), limit) != 0
        finally:
            file.write_bytes(original)

    def _tests(self, names: list[str], *plugins: object) -> int:
        os.chdir(self.root)
        sys.path.insert(0, str(self.copy))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(self.copy), os.environ.get("PYTHONPATH", "")])
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # two changes within a second would look alike to it
        sys.dont_write_bytecode = True
        words = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", f"--rootdir={self.root}"]
        return int(pytest.main([*words, *names], plugins=[*plugins]))

    def _others(self) -> list[str]:
        """The modules of this process that are not of the checkout, in the order of their imports."""
        files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
        own = (self.copy, *(self.root / part for part in (self.package, "tests", "scripts")))
        found = [(name, Path(file)) for name, file in files.items() if file and name != "__main__"]
        return [name for name, file in found if not any(file.is_relative_to(folder) for folder in own)]


def in_fork(work: Callable[[], int], limit: float) -> int | None:
    """The exit status of a function in a fork of this process; `None` if it took longer, and was killed."""
    child = os.fork()
    if child == 0:
        status = 3
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            status = work()
        finally:
            os._exit(status)
    end = time.monotonic() + limit
    done, status = 0, 0
    while not done and time.monotonic() < end:
        time.sleep(0.01)
        done, status = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError, PermissionError):  # also what its tests have started
        os.killpg(child, signal.SIGKILL)
    if done:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(child, 0)
    return None


def tried(mutants: Sequence[Mutant], runner: Runner, budget: float, timeout: float | None) -> list[Result]:
    """What becomes of each."""
    graph = ImportGraph(runner.root, runner.package)
    asked = {
        file: graph.tests_of(runner.root / file) for file in dict.fromkeys(mutant.file for mutant in mutants)
    }
    unchanged: dict[str, list[Unchanged]] = {}
    for file in tqdm(dict.fromkeys(file for files in asked.values() for file in files), "unchanged"):
        found = runner.unchanged(file, limit=60 + 2 * budget)
        if isinstance(found, str):
            tqdm.write(f"left out: {file} {found}")
        else:
            unchanged[file] = found
    results: list[Result] = []
    for mutant in (bar := tqdm(mutants, "changed")):
        tests = [test for file in asked[mutant.file] for test in unchanged.get(file, []) if test.runs(mutant)]
        tests = within(tests, budget)
        limit = timeout or 10 + 4 * sum(test.seconds for test in tests)
        names, begun = [test.name for test in tests], time.monotonic()
        killed = bool(tests) and runner.is_noticed(mutant, names, limit)
        results.append(Result(mutant, _outcome(mutant, killed), names, time.monotonic() - begun))
        bar.set_postfix(survived=sum(result.outcome == "survived" for result in results))
    return results


def within(tests: Sequence[Unchanged], budget: float) -> list[Unchanged]:
    """As many as there are seconds for, but one at least."""
    chosen: list[Unchanged] = []
    for test in tests:
        if not chosen or sum(own.seconds for own in chosen) + test.seconds <= budget:
            chosen.append(test)
    return chosen


def _outcome(mutant: Mutant, killed: bool) -> str:
    if killed:
        return "killed"
    equivalent = {entry[:3] for entry in EQUIVALENT}
    return "equivalent" if (mutant.file, mutant.text, mutant.change) in equivalent else "survived"


def report(results: Sequence[Result]) -> str:
    """The survivors, and a table by folder."""
    lines = []
    for result in results:
        if result.outcome == "survived":
            mutant = result.mutant
            why = "" if result.tests else "    (no test runs it)"
            lines.append(f"{mutant.file}:{mutant.line}    {mutant.change}{why}")
    lines += ["", f"{'folder':24}{'mutants':>9}{'killed':>9}{'equivalent':>12}{'survived':>10}{'share':>9}"]
    for folder in dict.fromkeys(str(Path(result.mutant.file).parent) for result in results):
        own = [result.outcome for result in results if str(Path(result.mutant.file).parent) == folder]
        killed, equivalent, survived = (own.count(name) for name in ("killed", "equivalent", "survived"))
        share = survived / max(1, killed + survived)  # of those that could have been noticed
        lines.append(f"{folder:24}{len(own):9}{killed:9}{equivalent:12}{survived:10}{share:9.1%}")
    return "\n".join(lines)


def as_json(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        mutant = result.mutant
        row = {"file": mutant.file, "line": mutant.line, "text": mutant.text, "change": mutant.change}
        rows.append(
            {**row, "outcome": result.outcome, "tests": result.tests, "seconds": round(result.seconds, 2)}
        )
    return json.dumps(rows, indent=1, ensure_ascii=False)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=PATHS, help="files or folders of one package")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="only so many changes of each path, drawn at random"
    )
    parser.add_argument("--seed", type=int, default=0, help="of that draw")
    parser.add_argument(
        "--budget", type=float, default=20.0, help="seconds of tests that a change is put to at most"
    )
    parser.add_argument(
        "--timeout", type=float, help="seconds after which a change counts as noticed; else by its tests"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes every change with its outcome")
    parser.add_argument("--list", action="store_true", help="only lists the changes")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout")
    return parser.parse_args(argv)


def chosen(arguments: argparse.Namespace, root: Path) -> list[Mutant]:
    """The changes of all paths, or a sample of those of each."""
    found: list[Mutant] = []
    for path in (root / path for path in arguments.paths):
        if not path.exists():
            raise SystemExit(f"There is no {path}; name files or folders of the checkout.")
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        own = [mutant for file in files for mutant in mutants_of(file, root)]
        if arguments.sample is not None and arguments.sample < len(own):
            drawn = random.Random(arguments.seed).sample(range(len(own)), arguments.sample)
            own = [own[i] for i in sorted(drawn)]
        found += own
    return found


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    root = arguments.root.resolve()
    mutants = chosen(arguments, root)
    if arguments.list:
        print("\n".join(f"{mutant.file}:{mutant.line}    {mutant.change}" for mutant in mutants))
        return
    if not hasattr(os, "fork"):
        raise SystemExit(
            "Each change is tried in a fork, which Windows does not have: run it on Linux, macOS or WSL."
        )
    tqdm.monitor_interval = 0  # no thread beside this one, or forks may wait for what it holds
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(root, Path(arguments.paths[0]).parts[0], Path(folder).resolve())
        results = tried(mutants, runner, arguments.budget, arguments.timeout)
    if arguments.json:
        arguments.json.write_text(as_json(results), encoding="utf-8")
    print(report(results))


if __name__ == "__main__":
    main()
