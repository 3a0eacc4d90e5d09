"""`lgym sweep`: search for better settings, by Optuna.

    lgym sweep --config configs/frozen_lake.yaml --space configs/spaces/ppo.yaml --trials 20

Every trial is an ordinary run of `lgym fit` in a folder of its own; a run with the YAML's own settings comes
first. A trial that does worse than others did at the same rollout is pruned. Several of these commands can
work on one study (`--storage`), and one that was killed goes on. At the end there is the best YAML, a table,
and Optuna's pictures of the history and of what mattered.
"""

import argparse
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib

from lgym.cli.sigterm import sigterm_as_interrupt
from lgym.terminal import say
from lgym.types import ConfigError

HEARTBEAT, GRACE = 10, 40
"""Seconds between a trial's signs of life, and after which it is taken for dead."""

RETRIES = 3
FAILURES = 5
"""Failed trials in a row that end a sweep."""

BASELINE, FIRST_TRY, TRIES = "baseline", "first_try", "tries"
"""Names of what a study, or a trial, keeps beside Optuna's own."""

UNDER_WAY = "under way"
"""In place of the baseline's result."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "lgym sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, help="the YAML to improve")
    parser.add_argument("--space", type=Path, required=True, help="YAML of the settings to try")
    parser.add_argument("--trials", type=int, default=20, help="finished trials of the study, by default 20")
    parser.add_argument("--runs", type=Path, default=Path("runs/sweep"), help="folder of the studies")
    parser.add_argument("--study", help="its name, by default that of the YAML")
    parser.add_argument("--storage", help="Optuna's, by default an SQLite file in the study's folder")
    parser.add_argument("--metric", default="val_sampled/return_mean", help="what to improve: its last value")
    parser.add_argument("--prune_on", default="rollout/return_mean", help="metric of a rollout to prune by")
    parser.add_argument("--minimize", action="store_true", help="less is better")
    parser.add_argument("--sampler", default="optuna.samplers.TPESampler", help="by class_path")
    parser.add_argument("--pruner", default="optuna.pruners.MedianPruner", help="by class_path")
    parser.add_argument("--seed", type=int, default=0, help="of the sampler")
    parser.add_argument("--fit", nargs=argparse.REMAINDER, default=[], help="options of `fit`, up to the end")
    return parser


def instance(class_path: str, **arguments: Any) -> Any:
    """An object by its class path; of the arguments, those that its class takes.

    Raises:
        ConfigError: if there is no such class.
    """
    module, _, name = class_path.rpartition(".")
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{class_path} is no class ({error}); one is optuna.samplers.TPESampler."
        ) from error
    known = inspect.signature(kind).parameters
    return kind(**{key: value for key, value in arguments.items() if key in known})


def make_study(arguments: argparse.Namespace, folder: Path) -> Any:
    """The study, new or as far as it has come."""
    import optuna
    from optuna.storages import RDBStorage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    storage = RDBStorage(
        arguments.storage or f"sqlite:///{folder / 'study.db'}",
        heartbeat_interval=HEARTBEAT,
        grace_period=GRACE,
        heartbeat_stale_trial_callback=try_again,
    )
    return optuna.create_study(
        study_name=arguments.study or arguments.config.stem,
        storage=storage,
        load_if_exists=True,
        direction="minimize" if arguments.minimize else "maximize",
        sampler=instance(arguments.sampler, seed=arguments.seed),
        pruner=instance(arguments.pruner),
    )


def try_again(study: Any, trial: Any) -> None:
    """Queues a trial whose process is gone once more; its run goes on from its last checkpoint."""
    tries = trial.user_attrs.get(TRIES, 1)
    if tries <= RETRIES:
        queue(study, trial, tries + 1)


def queue(study: Any, trial: Any, tries: int) -> None:
    """Queues a trial's settings once more, for the same folder."""
    study.enqueue_trial(trial.params, user_attrs={FIRST_TRY: first_try(trial), TRIES: tries})


def first_try(trial: Any) -> int:
    """The number of the trial that began the run."""
    number: int = trial.user_attrs.get(FIRST_TRY, trial.number)
    return number


@dataclass
class FailureLimit:
    """Ends a sweep whose trials fail one after the other, as where its space has a wrong name.

    Attributes:
        folder: of the study.
        failures: so many of the last trials.
    """

    folder: Path
    failures: int = 0

    def __call__(self, study: Any, trial: Any) -> None:
        """Counts a trial that has ended."""
        self.failures = self.failures + 1 if trial.state.name == "FAIL" else 0
        if self.failures == FAILURES:
            raise ConfigError(
                f"{FAILURES} trials failed one after the other; "
                f"{self.folder / f'trial_{first_try(trial)}' / 'log.txt'} says why the last one did. Mend "
                "it, and `lgym sweep` goes on."
            )


def objective(arguments: argparse.Namespace, space: Any, folder: Path) -> Callable[[Any], float]:
    """A trial's run, from its settings to its result."""
    from optuna import TrialPruned

    from lgym.cli.sweep.space import suggest
    from lgym.cli.sweep.trial_run import TrialFailedError, TrialRun

    def carry_out(trial: Any) -> float:
        place = folder / f"trial_{first_try(trial)}"
        run = TrialRun(arguments.config, suggest(space, trial), place, arguments.fit)
        settings = ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in run.settings.items())
        say(f"Trial {trial.number}: {settings}")
        try:
            for step, value in run.reports(arguments.prune_on):
                trial.report(value, step)
                if trial.should_prune():
                    say(f"  pruned after rollout {step}, at {value:.5g}")
                    raise TrialPruned
            values = run.values(arguments.metric)
        except KeyboardInterrupt:
            run.stop()  # before another process takes it up
            queue(trial.study, trial, trial.user_attrs.get(TRIES, 1))
            raise
        finally:
            run.stop()
        if not values:
            raise TrialFailedError(f"the run in {place} logged no {arguments.metric}")
        say(f"  {arguments.metric} {values[-1]:.5g}")
        return values[-1]

    return carry_out


def run_baseline(arguments: argparse.Namespace, study: Any, folder: Path) -> None:
    """Runs the YAML's own settings, unless there is their result, or another process is at it.

    Raises:
        ConfigError: if the run has come to its end without the metric.
    """
    from lgym.cli.sweep.trial_run import TrialFailedError, TrialRun

    if study.user_attrs.get(BASELINE) is not None:
        return
    say(f"The settings of {arguments.config}:")
    run = TrialRun(arguments.config, {}, folder / BASELINE, arguments.fit)
    result: float | None = None
    study.set_user_attr(BASELINE, UNDER_WAY)
    try:
        for _ in run.reports(arguments.prune_on):
            pass
        values = run.values(arguments.metric)
        if not values:
            raise ConfigError(
                f"--metric {arguments.metric}: the run in {run.root} has ended, and logged none. Give one of "
                "its metrics, by its name in TensorBoard, such as val_greedy/return_mean."
            )
        result = values[-1]
        say(f"  {arguments.metric} {result:.5g}")
    except TrialFailedError as error:
        say(f"  without a result: {error}")
    finally:
        run.stop()
        study.set_user_attr(BASELINE, result)


def main(words: Sequence[str]) -> None:
    """Carries the study on to its number of trials, and writes what came of it.

    Raises:
        ConfigError: if Optuna is missing, or a file is, or the runs fail.
    """
    arguments = parser().parse_args(words)
    try:
        from optuna.study import MaxTrialsCallback
        from optuna.trial import TrialState

        from lgym.cli.sweep.outcome import finished, verdict, write_outcome
        from lgym.cli.sweep.space import read_space
        from lgym.cli.sweep.trial_run import TrialFailedError
    except ImportError as error:
        raise ConfigError(
            f"`lgym sweep` needs {error.name}, which is not installed: `pip install 'lgym[sweep]'`, or `pip "
            "install optuna`."
        ) from error
    matplotlib.use("Agg")
    if not arguments.config.is_file():
        raise ConfigError(f"--config {arguments.config}: there is no such file.")
    space = read_space(arguments.space)
    folder = arguments.runs / (arguments.study or arguments.config.stem)
    folder.mkdir(parents=True, exist_ok=True)
    study, ended = make_study(arguments, folder), (TrialState.COMPLETE, TrialState.PRUNED)
    try:
        with sigterm_as_interrupt():
            run_baseline(arguments, study, folder)
            if len(study.get_trials(states=ended)) < arguments.trials:
                study.optimize(
                    objective(arguments, space, folder),
                    callbacks=[MaxTrialsCallback(arguments.trials, states=ended), FailureLimit(folder)],
                    catch=(TrialFailedError,),
                )
    except KeyboardInterrupt:
        say("\nInterrupted. `lgym sweep` with the same words goes on.")
        if not finished(study):
            return
    if not finished(study):
        raise ConfigError(f"No trial was finished; their folders in {folder} have a log.txt each.")
    for file in write_outcome(study, arguments.config, folder, arguments.metric):
        say(f"  {file}")
    own = study.user_attrs.get(BASELINE)
    say(verdict(study, own if isinstance(own, float) else None, arguments.metric))
