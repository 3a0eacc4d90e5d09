"""Trained agents that come with lgym, and runs by the name of their folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from helpers.runs import QUICK, lgym, scalars
from lgym import pretrained
from lgym.cli import main
from lgym.cli.command_line import LgymCLI
from lgym.cli.words import written_out
from lgym.types import ConfigError
from pack_agent import pack

PPO = "--model=lgym.modules.PPO"


@pytest.fixture(scope="module")
def run(tmp_path_factory, model_folder) -> Path:
    folder = tmp_path_factory.mktemp("run")
    lgym("fit", folder, model_folder, trainer__max_epochs=5, **QUICK)
    return folder / "version_0"


@pytest.fixture
def box(run, tmp_path, monkeypatch):
    """The run as an agent that comes with lgym; its YAML says how it plays."""
    root = tmp_path / "pretrained"
    root.mkdir()
    monkeypatch.setattr(pretrained, "ROOT", root)
    monkeypatch.setattr("pack_agent.ROOT", root)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["trainer"] = {"accelerator": "cpu", "default_root_dir": str(tmp_path / "runs")}
    del config["model"]["init_args"]["llm"]["lora"]
    (tmp_path / "echo.yaml").write_text(yaml.safe_dump(config))
    pack("echo", tmp_path / "echo.yaml", run)
    return root


def test_an_agent_is_small_and_says_where_it_comes_from(box, run):
    names = {file.name for file in (box / "echo").iterdir()}
    assert names == {"adapter_model.safetensors", "adapter_config.json", "value_head.safetensors",
                     "README.md", "run.json", "config.yaml"}  # fmt: skip
    for name in ("adapter_model.safetensors", "value_head.safetensors"):
        assert (box / "echo" / name).stat().st_size < 0.75 * (run / "adapter" / name).stat().st_size
    assert str(run.parent) not in (box / "echo" / "run.json").read_text()
    assert pretrained.names() == ["echo"]


def test_it_reaches_what_its_card_says(box, tmp_path):
    """In bf16, by its name alone, on other episodes than those of the card."""
    main(["test", "echo"])
    card = json.loads((box / "echo" / "run.json").read_text())["results"]
    (result,) = (tmp_path / "runs").glob("version_*")
    reached = scalars(result.parent)["test_greedy/return_mean"]
    assert card["val_greedy/return_mean"] > 0.9
    assert list(reached.values())[0] > 0.9


def test_a_run_plays_by_its_folder(run, capsys):
    main(["play", str(run), "--greedy", "--delay=0", "--episodes=3"])
    assert "3 episodes, mean return +1.0000" in capsys.readouterr().out


def test_fit_goes_on_from_an_agent_by_its_name(box, model_folder, tmp_path):
    lgym("fit", tmp_path / "on", model_folder, trainer__max_epochs=1,
         **{**QUICK, "model__init_args__llm__adapter": "echo"})  # fmt: skip
    assert scalars(tmp_path / "on")["val_greedy/return_mean"][0] > 0.9


def test_names_are_written_out(box, run):
    known = LgymCLI.subcommands()
    folder = box / "echo" / "config.yaml"
    options = ["--config", str(folder), "--model.init_args.llm.adapter", "echo"]
    assert written_out(["play", "echo", "--greedy"], known) == ["play", *options, "--greedy"]
    adapter = str(run / "adapter")
    own = ["--config", str(run / "config.yaml"), "--model.init_args.llm.adapter", adapter]
    assert written_out(["test", str(run)], known) == ["test", *own]
    assert written_out(["play", "--data.env", "Echo-v0"], known) == ["play", PPO, "--data.env", "Echo-v0"]


def test_an_unknown_name_is_told_with_those_that_there_are(box, capsys):
    with pytest.raises(ConfigError, match="nobody is no agent: give one that comes with lgym .echo."):
        pretrained.agent_options("nobody")
    with pytest.raises(ConfigError, match="llm.adapter nobody holds no adapter"):
        pretrained.adapter_folder("nobody")
    with pytest.raises(SystemExit):
        main(["play", "nobody"])


def test_the_documentations_table_is_that_of_the_cards():
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text(encoding="utf-8")
    for name in pretrained.names():
        card = json.loads((pretrained.ROOT / name / "run.json").read_text())
        figures = [
            f"{card['results'][f'val_{mode}/return_mean']:.4f} ± {card['results'][f'val_{mode}/return_ci95']:.4f}"
            for mode in ("sampled", "greedy")
        ]
        optimal = card["reference_returns"].get("optimal")
        cells = [f"`{name}`", card["env"], *figures, "" if optimal is None else f"{optimal:.4f}"]
        assert f"| {' | '.join(cells)} |" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", pretrained.names())
def test_every_agent_reaches_its_card(name, tmp_path):
    """On other episodes: the mean return is within both intervals, or better."""
    folder = pretrained.ROOT / name
    card = json.loads((folder / "run.json").read_text())["results"]
    main(["test", name, f"--trainer.default_root_dir={tmp_path}", "--data.eval_episodes=100",
          "--trainer.callbacks=[]"])  # fmt: skip
    reached = {metric: list(values.values())[0] for metric, values in scalars(tmp_path).items()}
    for mode in ("greedy", "sampled"):
        margin = card[f"val_{mode}/return_ci95"] + reached[f"test_{mode}/return_ci95"]
        assert reached[f"test_{mode}/return_mean"] >= card[f"val_{mode}/return_mean"] - margin - 1e-6
    assert sum(file.stat().st_size for file in folder.iterdir()) < 5e6
