"""The outcome of a sweep: the best settings as a YAML, a table, and Optuna's pictures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from optuna import Study
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as pictures

SHOWN = 30
"""Trials in the table."""

OBJECT_KEYS = ("class_path", "init_args", "dict_kwargs")
"""Keys of an object in a YAML."""


def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some settings changed: the name of an object is that of its class, whose
    `init_args` may be left out in the names of its arguments. A class by another name leaves its arguments
    behind, where the command line keeps those that it shares.

    Args:
        config: nested, as a YAML has it.
        settings: by their dotted names.
    """
    changed = dict(config)
    for name, value in sorted(settings.items()):  # a class before its arguments
        *folders, last = name.split(".")
        place = changed
        for folder in folders:
            place = _inside(_owner(place, folder), folder)
        place = _owner(place, last)
        known = place.get(last)
        if not (isinstance(value, str) and isinstance(known, dict) and known.get("class_path") == value):
            place[last] = value
    return changed


def _owner(place: dict[str, Any], name: str) -> dict[str, Any]:
    """The part of an object that has an argument of that name."""
    is_argument = "class_path" in place and name not in OBJECT_KEYS
    return _inside(place, "init_args") if is_argument else place


def _inside(place: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings below a name, in a copy that takes their place; a text there is a class."""
    known = place.get(name)
    if isinstance(known, str):
        known = {"class_path": known}
    place[name] = dict(known) if isinstance(known, dict) else {}
    return place[name]


def finished(study: Study) -> list[FrozenTrial]:
    """Complete trials, the best first."""
    trials = study.get_trials(states=(TrialState.COMPLETE,))
    return sorted(trials, key=lambda trial: trial.value or 0.0, reverse=study.direction.name == "MAXIMIZE")


def table(study: Study, metric: str) -> str:
    """The best trials, and the number of those that were pruned or failed, in Markdown."""
    best = finished(study)[:SHOWN]
    names = list(dict.fromkeys(name for trial in best for name in trial.params))
    rows = [("trial", metric, *names), ("---",) * (2 + len(names))]
    rows += [
        (str(trial.number), f"{trial.value:.5g}", *(_said(trial.params.get(name)) for name in names))
        for trial in best
    ]
    counts = {state: len(study.get_trials(states=(state,))) for state in TrialState}
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return (
        f"{text}\n\n{counts[TrialState.COMPLETE]} complete, {counts[TrialState.PRUNED]} pruned, "
        f"{counts[TrialState.FAIL]} failed.\n"
    )


def write_outcome(study: Study, config: Path, folder: Path, metric: str) -> list[Path]:
    """Writes `best.yaml`, `trials.md` and the pictures that there are enough trials for."""
    folder.mkdir(parents=True, exist_ok=True)
    best = finished(study)[0]
    settings = with_settings(yaml.safe_load(config.read_text(encoding="utf-8")), best.params)
    heading = f"# The best of {len(study.trials)} trials of {config.name}: {metric} {best.value:.5g}\n"
    (folder / "best.yaml").write_text(heading + yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    (folder / "trials.md").write_text(table(study, metric), encoding="utf-8")
    files = [folder / "best.yaml", folder / "trials.md", folder / "history.png"]
    _save(pictures.plot_optimization_history(study, target_name=metric), folder / "history.png")
    varied = [name for name in best.params if len({str(t.params.get(name)) for t in finished(study)}) > 1]
    if len(finished(study)) > 2 and varied:
        evaluator = PedAnovaImportanceEvaluator()
        axes = pictures.plot_param_importances(study, evaluator=evaluator, params=varied)
        _save(axes, folder / "importances.png")
        files.append(folder / "importances.png")
    return files


def verdict(study: Study, baseline: float | None, metric: str) -> str:
    """The best trial in a sentence, beside the YAML's own settings."""
    best = finished(study)[0]
    assert best.value is not None
    said = f"Trial {best.number} was the best: {metric} {best.value:.5g}"
    if baseline is None:
        return f"{said}."
    better = best.value > baseline if study.direction.name == "MAXIMIZE" else best.value < baseline
    if better:
        return f"{said}, and {baseline:.5g} with the YAML's own settings."
    return f"No trial was better than the YAML's own settings: {metric} {baseline:.5g}. {said}."


def _save(axes: Any, file: Path) -> None:
    axes.figure.savefig(file, dpi=110, bbox_inches="tight")


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
