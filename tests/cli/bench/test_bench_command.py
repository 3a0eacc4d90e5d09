"""The command that runs YAMLs and writes what came of them."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pytest
import yaml

from helpers.records import RECORD
from lgym.cli import main
from lgym.cli.bench import Run, carry_out, plan
from lgym.cli.bench.pictures import comparison, draw_all, learning_curves, mean_curve
from lgym.cli.bench.records import read_all, write
from lgym.cli.bench.tables import BEGIN, END, HEADER, row, table, with_table
from lgym.cli.runs import newest_run
from lgym.types import ConfigError

DOCS = Path(__file__).parents[3] / "docs"
EMPTY = f"# Results\n\n{BEGIN}\n{END}\n\nMore.\n"
MORE_SEEDS = [
    replace(RECORD, seed=n, minutes=n, commit="def",
            curves={"val_sampled/return_mean": [(0, 0.1), (64, 0.1 * n)], "val_greedy/return_mean": [(64, 1.0)]})
    for n in range(3, 8)
]  # fmt: skip


def test_a_row_of_one_run():
    assert {name: row([RECORD])[name] for name in HEADER} == {
        "YAML": "`lake`",
        "environment": "FrozenLake-v1, is_slippery: False",
        "algorithm": "PPO, CandidatePolicy",
        "seeds": "3",
        "untrained": "0.100",
        "sampled": "0.900",
        "greedy": "1.00",
        "random": "0.014",
        "optimal": "1.00",
        "turns": "64",
        "minutes": "1.5",
        "machine": "a CPU, 1 core, 1 thread",
        "commit": "abc",
    }


def test_seeds_are_summed_up_with_an_interval():
    """Of 0.3, 0.4, 0.5, 0.6 and 0.7 the middle three have a mean of 0.5; one seed alone said nothing at the
    start, so the untrained model has no figure."""
    found = row(MORE_SEEDS)
    mean, low, high = (float(part.strip("[],")) for part in found["sampled"].split())
    assert mean == 0.5
    assert 0.3 <= low < 0.45
    assert 0.55 < high <= 0.7
    assert found["greedy"] == "1.00 [1.00, 1.00]"
    assert found["minutes"] == "3.0 to 7.0"
    assert found["seeds"] == "3, 4, 5, 6, 7"
    slippery = replace(RECORD, subject=RECORD.subject | {"env_kwargs": {"is_slippery": True}})
    environments = "FrozenLake-v1, is_slippery: False; FrozenLake-v1, is_slippery: True"
    assert row([*MORE_SEEDS, slippery])["environment"] == environments
    part = [MORE_SEEDS[0], replace(RECORD, curves={"val_sampled/return_mean": [(64, 0.3)]})]
    assert row(part)["untrained"] == ""


def test_the_bar_is_at_95_percent_of_the_way_from_random_to_optimal_play():
    """From 0.014 to 1 that is 0.951: of 0.3 to 0.7 none is there, of 0.94 and 0.96 one."""
    assert row(MORE_SEEDS)["seeds at the bar"] == "0 of 5"
    near = [replace(RECORD, curves={"val_sampled/return_mean": [(64, end)]}) for end in (0.94, 0.96)]
    assert row(near)["bar"] == "0.951"
    assert row(near)["seeds at the bar"] == "1 of 2"
    assert row(MORE_SEEDS)["median minutes"] == "5.0"
    unknown = replace(RECORD, subject={**RECORD.subject, "reference_returns": {"random": 0.0}})
    assert row([unknown])["bar"] == row([unknown])["seeds at the bar"] == ""


def test_exact_values_and_success_rates_come_first():
    exact = {"blackjack/value_sampled": [(64, -0.05)], "val_sampled/success_rate": [(64, 0.25)]}
    assert row([replace(RECORD, curves={**RECORD.curves, **exact})])["sampled"] == "-0.050; 25.0% succeed"


def test_the_table_takes_the_place_between_the_marks():
    page = with_table(EMPTY, [RECORD, replace(RECORD, name="pond")], Path("page.md"))
    assert page.startswith(f"# Results\n\n{BEGIN}\n| YAML |")
    assert page.endswith(f"{END}\n\nMore.\n")
    assert page.count("| `lake` |") == page.count("| `pond` |") == 1
    assert with_table(page, [RECORD], Path("page.md")).count("`pond`") == 0
    with pytest.raises(ConfigError, match="has no place for the table"):
        with_table("# Results", [RECORD], Path("page.md"))


def test_a_page_may_name_its_columns():
    begin = BEGIN.replace(" -->", ": YAML, sampled -->")
    page = with_table(f"{begin}\nold\n{END}\nMore.", [RECORD], Path("page.md"))
    assert page == f"{begin}\n| YAML | sampled |\n| --- | --- |\n| `lake` | 0.900 |\n{END}\nMore."
    with pytest.raises(ConfigError, match="asks for a column 'price'"):
        with_table(f"{BEGIN.replace(' -->', ': price -->')}\n{END}", [RECORD], Path("page.md"))


def test_the_mean_of_curves_is_where_all_are_known():
    """Half-way from (0, 0) to (10, 10) is 5, and the other curve is at 1 all along."""
    turns, mean = mean_curve([[(0, 0.0), (10, 10.0)], [(2, 1.0), (6, 1.0), (20, 1.0)]])
    assert (turns[0], turns[-1]) == (2, 10)
    assert mean[0] == pytest.approx(1.5)
    assert mean[-1] == pytest.approx(5.5)
    assert len(mean_curve([[(0, 0.0)], []])[0]) == 0


def test_the_picture_has_a_line_for_each_seed_and_each_known_policy():
    axes = learning_curves(MORE_SEEDS).axes[0]
    assert len(axes.lines) == 2 * len(MORE_SEEDS) + 1 + len(RECORD.subject["reference_returns"])


def test_yamls_laid_over_a_task_share_a_picture(tmp_path):
    """A line for the mean of each, a point for the end of each seed, and the known policies."""
    layers = [[replace(record, name=name) for record in MORE_SEEDS] for name in ("lake+a2c", "lake+grpo")]
    axes = comparison(layers).axes[0]
    assert axes.get_xscale() == "log"
    assert len(axes.lines) == 2 * 2 + len(RECORD.subject["reference_returns"])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a2c", "grpo"]
    draw_all([*layers[0], *layers[1], replace(RECORD, name="pond")], tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"lake.png", "pond.png"}


def test_a_run_goes_on_where_it_was(tmp_path):
    """The newest folder says whether it is finished."""
    run = Run("lake", ("--config", "lake.yaml"), 3, tmp_path, ("--trainer.max_epochs", "2"))
    words = "fit --config lake.yaml --trainer.max_epochs 2 --seed_everything 3 --trainer.default_root_dir"
    assert run.command == [*words.split(), str(tmp_path), "--ckpt_path", "auto"]
    assert not run.is_finished
    for version, finished in ((0, True), (1, False)):
        (tmp_path / f"version_{version}").mkdir()
        (tmp_path / f"version_{version}" / "run.json").write_text(json.dumps({"finished": finished}))
        os.utime(tmp_path / f"version_{version}", (time.time(), 1000 + version))
    assert newest_run(tmp_path) == tmp_path / "version_1"
    assert not run.is_finished


def touched(folder: Path, *names: str) -> list[str]:
    """The paths of new, empty YAMLs."""
    for name in names:
        (folder / f"{name}.yaml").touch()
    return [str(folder / f"{name}.yaml") for name in names]


def test_every_yaml_has_a_first_run_before_any_has_a_second(tmp_path):
    files = touched(tmp_path, "a", "b")
    runs = plan(files, [0, 1], tmp_path)
    assert [(run.name, run.seed) for run in runs] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert len({run.root for run in runs}) == 4
    with pytest.raises(ConfigError, match=r"c\.yaml: there is no such file"):
        plan([str(tmp_path / "c.yaml")], [0], tmp_path)
    with pytest.raises(ConfigError, match="would both be a: give one as a YAML of another name"):
        plan([files[0], files[0]], [0], tmp_path)


def test_each_yaml_is_run_with_each_that_is_laid_over_it(tmp_path):
    lake, pond, a2c, grpo = touched(tmp_path, "lake", "pond", "a2c", "grpo")
    runs = plan([lake, pond], [0], tmp_path, over=[a2c, grpo])
    assert [run.name for run in runs] == ["lake+a2c", "lake+grpo", "pond+a2c", "pond+grpo"]
    assert runs[1].command[:5] == ["fit", "--config", lake, "--config", grpo]
    for missing in (str(tmp_path / "c.yaml"), "CartPole-v1"):
        with pytest.raises(ConfigError, match=f"{missing}: there is no such file"):
            plan([lake], [0], tmp_path, over=[missing])
    with pytest.raises(ConfigError, match="there is no task in front of it to lay these over"):
        plan([], [0], tmp_path, over=[a2c, lake])


def test_an_environment_is_named_by_its_id(tmp_path):
    """Its name is that without the namespace; one that is not registered is refused before any run."""
    (a2c,) = touched(tmp_path, "a2c")
    (run,) = plan(["lgym/GuessNumber-v0"], [0], tmp_path, over=[a2c])
    assert run.name == "GuessNumber-v0+a2c"
    (tmp_path / "pole.json").touch()
    assert plan([str(tmp_path / "pole.json")], [0], tmp_path)[0].name == "pole"
    assert run.command[:5] == ["fit", "--data.env", "lgym/GuessNumber-v0", "--config", a2c]
    assert plan(["lgym/ReasoningGym-v0"], [0], tmp_path)  # `--fit` says which task
    with pytest.raises(ConfigError, match="is not a registered environment.*Close to it: CartPole-v1"):
        plan(["CartPole-v11"], [0], tmp_path)


def bench(folder: Path, *words: str) -> str:
    places = [
        f"--{name}={folder / value}" for name, value in
        (("runs", "runs"), ("records", "records"), ("pages", "page.md"), ("pictures", "curves"))
    ]  # fmt: skip
    main(["bench", *places, *words])
    return (folder / "page.md").read_text()


def test_a_page_that_is_not_there_is_begun(tmp_path):
    """Catches a project that has no page of results yet: it ended in a traceback."""
    write(RECORD, tmp_path / "records")
    assert bench(tmp_path).startswith(f"# Results\n\n{BEGIN}\n| YAML |")


def test_without_yamls_the_page_is_written_from_the_records(tmp_path, capsys):
    (tmp_path / "page.md").write_text(EMPTY)
    for record in MORE_SEEDS:
        write(record, tmp_path / "records")
    assert table(MORE_SEEDS) in bench(tmp_path)
    assert (tmp_path / "curves" / "lake.png").stat().st_size > 5000
    assert "5 runs in" in capsys.readouterr().out


def test_a_record_is_written_as_soon_as_its_run_is_over(tmp_path, monkeypatch):
    """Catches a bench of hours that is killed: of the runs that had ended nothing was written."""
    ended = Run("lake", (), 3, tmp_path / "runs" / "lake-3")

    def killed(runs, jobs):
        yield ended
        assert read_all(tmp_path / "records") == [RECORD]
        raise KeyboardInterrupt

    monkeypatch.setattr("lgym.cli.bench.carry_out", killed)
    monkeypatch.setattr("lgym.cli.bench.newest_run", lambda root: root)
    monkeypatch.setattr("lgym.cli.bench.records.record_of", lambda folder, name: RECORD)
    (tmp_path / "lake.yaml").touch()
    with pytest.raises(SystemExit):
        bench(tmp_path, str(tmp_path / "lake.yaml"), "--seeds", "3", "4")
    assert "`lake`" in (tmp_path / "page.md").read_text()


def test_the_page_is_read_again_when_the_runs_are_over(tmp_path, monkeypatch):
    """Catches hours in which the page was edited, whose edits were written over."""
    (tmp_path / "page.md").write_text(EMPTY)
    write(RECORD, tmp_path / "records")

    def edit(runs, jobs):
        (tmp_path / "page.md").write_text(f"Edited.\n{EMPTY}")
        return iter(())

    monkeypatch.setattr("lgym.cli.bench.carry_out", edit)
    assert bench(tmp_path).startswith(f"Edited.\n# Results\n\n{BEGIN}\n| YAML |")


@pytest.mark.parametrize(
    ("page", "folder"),
    [
        ("results.md", ""),
        ("speedrun.md", ""),
        ("../README.md", ""),
        ("algorithms/compared.md", "algorithms"),
        ("first_tries.md", "first_tries"),
    ],
)
def test_the_pages_of_results_agree_with_the_records(page, folder):
    """A figure that was typed, or a record that was added without the page."""
    records = read_all(DOCS / "records" / folder)
    assert records
    text = (DOCS / page).read_text(encoding="utf-8")
    assert with_table(text, records, DOCS / page) == text


@pytest.mark.parametrize("folder", ["", "algorithms", "first_tries"])
def test_every_record_has_its_picture(folder):
    tasks = {f"{record.task}.png" for record in read_all(DOCS / "records" / folder)}
    assert tasks == {file.name for file in (DOCS / "curves" / folder).glob("*.png")}


def test_several_at_a_time(tmp_path, monkeypatch, capsys):
    """Catches runs one after the other, of which the first would wait here for a second; outputs that are
    mixed; and as many threads in each as there are cores."""
    both = Barrier(2, timeout=30)
    environments = []

    def start(command, stdout, stderr, env):
        both.wait()
        environments.append(env)
        stdout.write(command[-3])
        return SimpleNamespace(wait=lambda: int("1" in command))

    monkeypatch.setattr("lgym.cli.bench.subprocess.Popen", start)
    monkeypatch.setattr("lgym.cli.bench.core_count", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    runs = [Run("lake", (tmp_path / "lake.yaml",), seed, tmp_path / str(seed)) for seed in range(4)]
    assert {run.seed for run in carry_out(runs, jobs=2)} == {0, 2, 3}
    assert (
        f"lake, seed 1, ended with status 1 (see {tmp_path / '1' / 'output.txt'})" in capsys.readouterr().out
    )
    assert (tmp_path / "2" / "output.txt").read_text() == str(tmp_path / "2")
    assert [env["OMP_NUM_THREADS"] for env in environments] == ["3"] * 4
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert len(list(carry_out(runs[2:], jobs=2))) == 2
    assert environments[-1]["OMP_NUM_THREADS"] == "5"
    with pytest.raises(SystemExit):
        bench(tmp_path, "--jobs", "0")
    assert "--jobs is 0; give 1 or more" in capsys.readouterr().err


def test_sigterm_ends_the_runs(tmp_path, pretended_fit, capsys):
    """Catches runs that went on, beside which the next call trained in the same folders."""
    pretended_fit("sleep 0.3; kill -TERM $PPID; exec sleep 20")
    (tmp_path / "lake.yaml").touch()
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # else it would end the tests
    begun = time.monotonic()
    try:
        with pytest.raises(SystemExit) as stop:
            bench(tmp_path, str(tmp_path / "lake.yaml"), "--seeds", "3", "4", "5", "--jobs", "2")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - begun < 20
    assert stop.value.code == 1
    said = capsys.readouterr().out
    assert "Interrupted" in said
    assert "lake, seed 3, ended with status -15" in said
    assert "lake, seed 4, ended with status -15" in said
    assert "seed 5" not in said


@pytest.mark.slow
def test_runs_are_run_once_and_twice_the_same(tmp_path, model_folder, capfd):
    """Two processes of their own learn the same; a third call finds both finished and starts none. A run that
    fails is told, and the other is on the page."""
    settings = {
        "trainer": {"accelerator": "cpu", "max_epochs": 2, "check_val_every_n_epoch": 1},
        "model": {"class_path": "lgym.modules.PPO", "init_args": {"llm": {"model": str(model_folder)}}},
        "data": {"env": "CartPole-v1", "num_envs": 4, "turns_per_rollout": 64, "eval_episodes": 4},
    }
    (tmp_path / "pole.yaml").write_text(yaml.safe_dump(settings))
    settings["data"]["env"] = "NoSuchWorld-v1"
    (tmp_path / "nowhere.yaml").write_text(yaml.safe_dump(settings))
    curves = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "page.md").write_text(EMPTY)
        bench(folder, str(tmp_path / "pole.yaml"), "--seeds", "3")
        curves.append(json.loads((folder / "records" / "pole-3.json").read_text())["curves"])
    assert curves[0] == curves[1]
    assert len(curves[0]["val_sampled/return_mean"]) == 3
    with pytest.raises(SystemExit):
        bench(folder, str(tmp_path / "pole.yaml"), str(tmp_path / "nowhere.yaml"), "--seeds", "3")
    assert "nowhere, seed 3, ended with status 1;" in capfd.readouterr().out
    assert [path.name for path in (folder / "runs" / "pole-3").iterdir()] == ["version_0"]
    assert "`pole`" in (folder / "page.md").read_text()
