"""`lgym sweep`: spaces, trials that are runs, and what comes of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

optuna = pytest.importorskip("optuna")

from lgym.cli import main  # noqa: E402
from lgym.cli.sweep import instance, try_again  # noqa: E402
from lgym.cli.sweep.outcome import table, verdict, with_settings, write_outcome  # noqa: E402
from lgym.cli.sweep.space import Choices, Range, read_space, suggest  # noqa: E402
from lgym.cli.sweep.trial_run import TrialFailedError, TrialRun  # noqa: E402
from lgym.types import ConfigError  # noqa: E402

SPACES = Path(__file__).parents[2] / "configs" / "spaces"


def test_a_space_has_ranges_and_choices(tmp_path):
    (tmp_path / "space.yaml").write_text(
        "a.lr: {low: 1.0e-4, high: 0.1, log: true}\nb: [1, null, x]\nc: {low: 1, high: 4}"
    )
    space = read_space(tmp_path / "space.yaml")
    assert space == {"a.lr": Range(1e-4, 0.1, log=True), "b": Choices((1, None, "x")), "c": Range(1, 4)}
    trial = optuna.trial.FixedTrial({"a.lr": 0.01, "b": None, "c": 3})
    assert suggest(space, trial) == {"a.lr": 0.01, "b": None, "c": 3}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [suggest(space, study.ask()) for _ in range(30)]
    assert {type(one["c"]) for one in drawn} == {int}
    assert all(1e-4 <= one["a.lr"] <= 0.1 for one in drawn)
    assert min(one["a.lr"] for one in drawn) < 1e-3  # orders of magnitude alike


@pytest.mark.parametrize(
    "text",
    ["", "- a", "a: 5", "a: []", "a: [[1]]", "a: {low: 1}", "a: {low: 2, high: 1}", "a: {low: 0, high: 1, log: true}",
     "a: {low: 1, high: 2, step: x}", "a: {low: 1, high: 2, log: true, step: 1}", "a: {low: true, high: 2}",
     "a: {low: 1, high: 2, base: 3}", "a: ["],
)  # fmt: skip
def test_what_is_no_space_is_refused(text, tmp_path):
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(ConfigError, match="--space"):
        read_space(tmp_path / "space.yaml")
    with pytest.raises(ConfigError, match="no such file"):
        read_space(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["ppo", "grpo", "dqn"])
def test_the_spaces_that_come_with_lgym_name_options(name, tmp_path, capsys):
    """Each is parsed, with a value of its own, by `fit` on the YAML that it is for; the best of a sweep as a
    YAML has the same settings."""
    space = read_space(SPACES / f"{name}.yaml")
    (config,) = [
        word
        for word in (SPACES / f"{name}.yaml").read_text().split()
        if word.startswith("configs/") and "spaces" not in word
    ]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    settings, file = suggest(space, study.ask()), SPACES.parents[1] / config
    best = with_settings(yaml.safe_load(file.read_text()), settings)
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(best, sort_keys=False))
    printed = []
    for words in (
        TrialRun(file, settings, Path("runs")).command[:-4],
        ["fit", "--config", str(tmp_path / "best.yaml")],
    ):
        with pytest.raises(SystemExit) as stop:
            main([*words, "--print_config"])  # without folder and checkpoint
        assert stop.value.code == 0
        printed.append(yaml.safe_load(capsys.readouterr().out))
    assert printed[0]["model"]["init_args"]["optimizer"]["class_path"] == "torch.optim.AdamW"
    assert printed[0] == printed[1]


def study_of(values, direction="maximize"):
    study = optuna.create_study(direction=direction, sampler=optuna.samplers.RandomSampler(seed=0))
    for value in values:
        trial = study.ask()
        trial.suggest_float("a.lr", 1e-4, 1e-2, log=True)
        trial.suggest_categorical("a.name", ["x", "y"])
        if value is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, value)
    return study


def test_the_best_settings_are_a_yaml_again(tmp_path):
    (tmp_path / "base.yaml").write_text("a: {lr: 1.0, other: 2}\nseed_everything: 0\n")
    study = study_of([0.1, 0.9, None, 0.5, 0.2])
    files = write_outcome(study, tmp_path / "base.yaml", tmp_path / "out", "return")
    best = yaml.safe_load((tmp_path / "out" / "best.yaml").read_text())
    found = {name.removeprefix("a."): value for name, value in study.best_params.items()}
    assert best == {"a": {"other": 2, **found}, "seed_everything": 0}
    assert {file.name for file in files} == {"best.yaml", "trials.md", "history.png", "importances.png"}
    assert all(file.stat().st_size > 100 for file in files)
    rows = (tmp_path / "out" / "trials.md").read_text().splitlines()
    assert rows[2].startswith("| 1 | 0.9 |")
    assert "4 complete, 1 pruned, 0 failed." in rows


def test_less_may_be_better():
    study = study_of([3.0, 1.0, 2.0], direction="minimize")
    assert table(study, "steps").splitlines()[2].startswith("| 1 | 1 |")
    assert verdict(study, 0.5, "steps").startswith(
        "No trial was better than the YAML's own settings: steps 0.5."
    )
    assert (
        verdict(study, 1.5, "steps") == "Trial 1 was the best: steps 1, and 1.5 with the YAML's own settings."
    )
    assert verdict(study, None, "steps") == "Trial 1 was the best: steps 1."


def test_nested_settings_are_changed_in_a_copy():
    config = {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
    assert with_settings(config, {"a.b.c": 5, "a.f.g": 6}) == {
        "a": {"b": {"c": 5}, "d": 2, "f": {"g": 6}},
        "e": 3,
    }
    assert config == {"a": {"b": {"c": 1}, "d": 2}, "e": 3}


def test_settings_of_an_object_are_as_the_command_line_takes_them():
    """Its own name is its class, under which its arguments stay; `init_args` may be left out."""
    config = {"o": {"class_path": "A", "init_args": {"x": 1}}, "p": "B"}
    settings = {"o.init_args.y": 2, "o": "A", "o.z.w": 3, "p.init_args.x": 4, "q.x": 5, "q": "C"}
    assert with_settings(config, settings) == {
        "o": {"class_path": "A", "init_args": {"x": 1, "y": 2, "z": {"w": 3}}},
        "p": {"class_path": "B", "init_args": {"x": 4}},
        "q": {"class_path": "C", "init_args": {"x": 5}},
    }
    assert with_settings(config, {"o": "B", "p": None}) == {"o": "B", "p": None}
    assert config == {"o": {"class_path": "A", "init_args": {"x": 1}}, "p": "B"}


def test_a_trial_whose_process_is_gone_is_queued_again_for_the_same_folder():
    """Three times, and no more."""
    study = optuna.create_study()
    study.ask().suggest_float("a", 0, 1)
    for tries in range(1, 5):
        stale = study.trials[-1]
        try_again(study, stale)
        assert len(study.trials) == 1 + min(tries, 3)
        study.ask().suggest_float("a", 0, 1)
    retried = study.trials[1:4]
    assert {trial.user_attrs["first_try"] for trial in retried} == {0}
    assert {trial.params["a"] for trial in retried} == {study.trials[0].params["a"]}


def test_samplers_come_by_class_path():
    assert type(instance("optuna.samplers.RandomSampler", seed=3)).__name__ == "RandomSampler"
    assert type(instance("optuna.pruners.NopPruner", seed=3)).__name__ == "NopPruner"
    for wrong in ("optuna.samplers.Nothing", "nothing", "no.such.module"):
        with pytest.raises(ConfigError, match="is no class"):
            instance(wrong)


def test_settings_are_written_as_the_command_line_reads_them(tmp_path):
    settings = {"a": None, "b": 0.5, "c": "x.Y", "d": True}
    words = TrialRun(Path("base.yaml"), settings, tmp_path, ("--e=1",)).command
    assert words[:4] == ["fit", "--config", "base.yaml", "--e=1"]
    assert words[4:8] == ["--a=null", "--b=0.5", "--c=x.Y", "--d=true"]


@pytest.fixture
def base(tmp_path, model_folder):
    settings = {
        "trainer": {"accelerator": "cpu", "max_epochs": 3, "check_val_every_n_epoch": 1},
        "model": {"class_path": "lgym.modules.PPO", "init_args": {"llm": {"model": str(model_folder)}}},
        "data": {"env": "CartPole-v1", "num_envs": 4, "turns_per_rollout": 64, "eval_episodes": 4},
    }
    (tmp_path / "pole.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "space.yaml").write_text(
        "data.update_epochs: {low: 1, high: 2}\nmodel.init_args.gamma: [0.9, 0.99]\n"
    )
    return tmp_path


def words_of(folder: Path, trials: int) -> list[str]:
    return ["sweep", "--config", str(folder / "pole.yaml"), "--space", str(folder / "space.yaml"),
            "--runs", str(folder / "runs"), f"--trials={trials}"]  # fmt: skip


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A sweep whose runs pretend."""
    (tmp_path / "pole.yaml").write_text("seed_everything: 0\n")
    (tmp_path / "space.yaml").write_text("data.update_epochs: {low: 1, high: 1000000}\n")
    monkeypatch.setattr("lgym.cli.sweep.trial_run.POLL_SECONDS", 0.01)
    return tmp_path


def test_a_sweep_whose_trials_all_fail_ends(pretended, pretended_fit, capsys):
    """Catches one that went on for ever."""
    pretended_fit("exit 2")
    with pytest.raises(SystemExit):
        main(words_of(pretended, 20))
    log = pretended / "runs" / "pole" / "trial_4" / "log.txt"
    assert f"5 trials failed one after the other; {log} says why" in capsys.readouterr().err


def test_a_metric_that_no_run_logs_ends_a_sweep_before_its_trials(pretended, pretended_fit, capsys):
    """Whenever it is called."""
    pretended_fit("exit 0")
    for _ in range(2):
        with pytest.raises(SystemExit):
            main([*words_of(pretended, 20), "--metric=val/nothing"])
        assert "--metric val/nothing: the run in" in capsys.readouterr().err
    assert not (pretended / "runs" / "pole" / "trial_0").exists()


@pytest.mark.parametrize("signal_name", ["INT", "TERM"])
def test_an_interrupted_sweep_loses_no_run(pretended, pretended_fit, monkeypatch, capsys, signal_name):
    """The first run and a trial are interrupted, and go on with the same settings in the same folder; nothing
    is left running, and that is no error."""
    calls = pretended / "calls"
    pretended_fit(
        f'echo "$@" >> {calls}; n=$(wc -l < {calls})\n'
        f"if [ $((n % 2)) = 1 ]; then sleep 0.2; kill -{signal_name} $PPID; exec sleep 20; fi"
    )
    monkeypatch.setattr(TrialRun, "values", lambda run, metric: [0.5])
    handlers = {signal.SIGTERM: lambda *_: None, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    begun = time.monotonic()
    try:
        for _ in range(2):
            main(words_of(pretended, 1))
            assert "Interrupted" in capsys.readouterr().out
        main(words_of(pretended, 1))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert time.monotonic() - begun < 20
    first, first_again, trial, trial_again = calls.read_text().splitlines()
    assert first == first_again
    assert trial == trial_again
    said = capsys.readouterr().out
    assert "The settings of" not in said
    assert "No trial was better than the YAML's own settings: val_sampled/return_mean 0.5." in said


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on(base, capsys):
    """Its runs are ordinary ones; what was finished before stays."""
    command = [sys.executable, "-m", "lgym.cli", *words_of(base, 3)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        for line in sweep.stdout:
            if line.startswith("Trial 1"):
                time.sleep(2)
                sweep.send_signal(signal.SIGKILL)
    folder = base / "runs" / "pole"
    done = (folder / "trial_0" / "version_0" / "run.json").stat().st_mtime
    main(words_of(base, 3))
    said = capsys.readouterr().out
    assert "Trial" in said
    assert "settings" in said
    assert (folder / "trial_0" / "version_0" / "run.json").stat().st_mtime == done
    study = optuna.load_study(study_name="pole", storage=f"sqlite:///{folder / 'study.db'}")
    ended = [t for t in study.trials if t.state.name in ("COMPLETE", "PRUNED")]
    assert len(ended) == 3
    assert study.user_attrs["baseline"] is not None
    assert yaml.safe_load((folder / "best.yaml").read_text())["data"]["update_epochs"] in (1, 2)
    main(words_of(base, 3))  # nothing is left to do
    assert "Trial 3" not in capsys.readouterr().out


def test_a_run_that_fails_is_told_with_its_log(tmp_path):
    (tmp_path / "base.yaml").write_text("data: {env: NoSuchWorld-v1}\n")
    run = TrialRun(tmp_path / "base.yaml", {}, tmp_path / "trial")
    with pytest.raises(TrialFailedError, match=r"ended with status 1; log.txt there says why"):
        list(run.reports("rollout/return_mean"))
    assert "NoSuchWorld" in (tmp_path / "trial" / "log.txt").read_text()
