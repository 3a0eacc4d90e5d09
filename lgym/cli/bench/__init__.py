"""`lgym bench`: run tasks with several seeds, and write their results from the runs' own records.

    lgym bench configs/maze.yaml configs/cartpole_dqn.yaml --seeds 0 1 2
    lgym bench configs/maze.yaml --over configs/algorithms/a2c.yaml configs/algorithms/grpo.yaml
    lgym bench configs/maze.yaml --seeds 0 1 2 3 4 5 6 7 --jobs 4
    lgym bench CartPole-v1 Taxi-v4 --seeds 0

The second one runs the first YAML twice, each time with another one laid over it, which wins where both say
something; the last one trains by defaults in the environments with these ids. Every run is an ordinary
`lgym fit`, in a folder of its own. Called again, it goes on where it was: finished runs are not run again,
others go on from their last checkpoint. Without tasks the page and its pictures are written anew from the
records that are there.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from lgym.callbacks.provenance import core_count, read_run
from lgym.cli.bench import records
from lgym.cli.bench.pictures import draw_all
from lgym.cli.bench.records import LAID_OVER
from lgym.cli.bench.tables import NEW_PAGE, with_table
from lgym.cli.runs import newest_run
from lgym.cli.sigterm import Terminated, sigterm_as_interrupt
from lgym.envs.make import require_registered
from lgym.terminal import say
from lgym.types import ConfigError

OUTPUT_FILE = "output.txt"
"""The output of a run that has others beside it, in its folder."""


@dataclass(frozen=True)
class Run:
    """A task with a seed.

    Attributes:
        name: that of its records: `maze`, or `maze+a2c`.
        task: the options of `fit` for its YAML or environment, and for a YAML that is laid over it, if any.
        seed: the run's.
        root: `trainer.default_root_dir`.
        options: further ones of `fit`.
    """

    name: str
    task: tuple[str, ...]
    seed: int
    root: Path
    options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """Words of `lgym`, for a new run or one that goes on."""
        own = [*self.task, *self.options, "--seed_everything", str(self.seed)]
        return ["fit", *own, "--trainer.default_root_dir", str(self.root), "--ckpt_path", "auto"]

    @property
    def is_finished(self) -> bool:
        """True if it came to its end."""
        folder = newest_run(self.root)
        return folder is not None and read_run(folder)["finished"]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "lgym bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tasks",
        nargs="*",
        metavar="TASK",
        help="a YAML, as `fit --config` takes it, or the id of an environment",
    )
    parser.add_argument(
        "--over", nargs="+", default=[], metavar="YAML", help="laid over each of them in turn"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="by default 0 1 2")
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at a time; the output of each is then in its folder"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/bench"), help="folder of the runs")
    parser.add_argument("--records", type=Path, default=Path("docs/records"), help="folder of their records")
    parser.add_argument(
        "--pages", nargs="+", type=Path, default=[Path("docs/results.md")], help="Markdown with the table"
    )
    parser.add_argument("--pictures", type=Path, default=Path("docs/curves"), help="folder of the pictures")
    parser.add_argument("--fit", nargs=argparse.REMAINDER, default=[], help="options of `fit`, up to the end")
    return parser


def is_yaml(task: str) -> bool:
    """True for a file, by whatever name, and false for the id of an environment."""
    return Path(task).suffix in (".yaml", ".yml") or Path(task).is_file()


def yaml_options(file: str) -> tuple[str, ...]:
    """The options of `fit` for a YAML.

    Raises:
        ConfigError: if there is no such file.
    """
    if not Path(file).is_file():
        raise ConfigError(f"{file}: there is no such file. Give YAMLs as `lgym fit --config` takes them.")
    return "--config", file


def task_options(task: str) -> tuple[str, ...]:
    """The options of `fit` for a YAML, or for an environment's id.

    Raises:
        ConfigError: if there is no such file, or no such environment.
    """
    if is_yaml(task):
        return yaml_options(task)
    require_registered(task)
    return "--data.env", task


def name_of(task: str) -> str:
    """A YAML's name without its folder and ending, and an environment's without its namespace."""
    return Path(task).stem if is_yaml(task) else re.split("[/:]", task)[-1]


def plan(
    tasks: Sequence[str],
    seeds: Sequence[int],
    root: Path,
    options: Sequence[str] = (),
    over: Sequence[str] = (),
) -> list[Run]:
    """The runs, seed by seed, so that every task has a first result early.

    Raises:
        ConfigError: if a file or an environment does not exist, two tasks have the same name, or there is
            nothing to lay YAMLs over.
    """
    if over and not tasks:
        raise ConfigError(
            f"--over {' '.join(over)}: there is no task in front of it to lay these over. Write "
            "`lgym bench TASK.yaml --over ALGORITHM.yaml`."
        )
    below = [(name_of(task), task_options(task)) for task in tasks]
    above = [(f"{LAID_OVER}{name_of(file)}", yaml_options(file)) for file in over] or [("", ())]
    layers: dict[str, tuple[str, ...]] = {}
    for (task, options_below), (addition, options_above) in product(below, above):
        name = task + addition
        if name in layers:
            raise ConfigError(f"Two of the tasks would both be {name}: give one as a YAML of another name.")
        layers[name] = (*options_below, *options_above)
    return [
        Run(name, task, seed, root / f"{name}-{seed}", tuple(options))
        for seed in seeds
        for name, task in layers.items()
    ]


def carry_out(runs: Sequence[Run], jobs: int = 1) -> Iterator[Run]:
    """Runs what is not finished, `jobs` at a time; yields each that is, and says which failed.

    Of several at a time each has its share of the cores, and its output goes to `output.txt` in its folder.
    """
    pool = ThreadPoolExecutor(jobs)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        numbered = enumerate(runs, start=1)
        begun = {
            pool.submit(_run, run, f"{number} of {len(runs)}", jobs, processes): run
            for number, run in numbered
        }
        for future in as_completed(begun):
            if future.result():
                yield begun[future]
    except (Terminated, GeneratorExit):
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _run(run: Run, number: str, jobs: int, processes: list[subprocess.Popen[bytes]]) -> bool:
    """Carry out a run that is not finished, in a further one of the processes; true if it is then."""
    say(f"\nRun {number}: {run.name}, seed {run.seed}")
    if run.is_finished:
        return True
    command = [sys.executable, "-m", "lgym.cli", *run.command]
    if jobs == 1:
        process = subprocess.Popen(command)
    else:
        run.root.mkdir(parents=True, exist_ok=True)
        threads = {"OMP_NUM_THREADS": str(max(1, core_count() // jobs))}
        with (run.root / OUTPUT_FILE).open("a", encoding="utf-8") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=threads | os.environ)
    processes.append(process)
    status = process.wait()
    if status != 0:
        where = "" if jobs == 1 else f" (see {run.root / OUTPUT_FILE})"
        ended = f"{run.name}, seed {run.seed}, ended with status {status}{where}"
        say(f"{ended}; `lgym bench` with the same words goes on with it.")
    return status == 0


def main(words: Sequence[str]) -> None:
    """Runs what is asked for and writes the page; ends with status 1 where a run failed."""
    arguments = parser().parse_args(words)
    runs = plan(arguments.tasks, arguments.seeds, arguments.runs, arguments.fit, arguments.over)
    for page in arguments.pages:
        with_table(_text_of(page), [], page)  # before anything long
    if arguments.jobs < 1:
        raise ConfigError(f"--jobs is {arguments.jobs}; give 1 or more.")
    finished = 0
    try:
        with sigterm_as_interrupt():
            for run in carry_out(runs, arguments.jobs):
                folder = newest_run(run.root)
                assert folder is not None
                records.write(records.record_of(folder, run.name), arguments.records)
                finished += 1
    except KeyboardInterrupt:
        say("\nInterrupted. `lgym bench` with the same words goes on where it was.")
    known = records.read_all(arguments.records)
    draw_all(known, arguments.pictures)
    for page in arguments.pages:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(with_table(_text_of(page), known, page), encoding="utf-8")
    names = " and ".join(map(str, arguments.pages))
    say(f"\n{len(known)} runs in {names}, {finished} of {len(runs)} that were asked for.")
    if finished < len(runs):
        sys.exit(1)


def _text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8") if page.exists() else NEW_PAGE
