"""README and docs/: commands run, names exist, links lead somewhere, every metric is in the table."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import gymnasium
import pytest

from helpers.runs import scalars
from lgym.cli import main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
METRIC = r"(?:rollout|response|policy|value|loss|optim|time|guard|blackjack)/\w+"
TABLE = set(re.findall(rf"`({METRIC})`", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")))
PER_EVALUATION = re.compile(r"(val|test)_(greedy|sampled)/(return_mean|return_ci95|length_mean)")


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands(page: Path) -> list[str]:
    """The `lgym` commands of a page, without the program; those with `...` are no whole commands."""
    found = set()
    for line in "\n".join(code_blocks(page, "bash")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["python3"]:
            words.pop(0)
        if words and re.search(r"(^|/)(lgym|bootstrap\.py)$", words[0]) and "..." not in words:
            found.add(shlex.join(words[1:]))
    return sorted(command for command in found if not command.startswith("test") or "--config" in command)


README_COMMANDS = commands(README)
OTHERS = sorted({command for page in PAGES[1:] for command in commands(page)} - set(README_COMMANDS))


def test_the_pages_have_commands():
    """No command found would pass everything below."""
    assert len(README_COMMANDS) >= 10
    assert len(OTHERS) >= 5


@pytest.mark.parametrize("command", README_COMMANDS)
def test_a_readme_command_runs(command, tmp_path, model_folder, monkeypatch):
    """Each `lgym` command of the README, as it stands there, on the tiny model and few episodes."""
    words = shlex.split(command)
    by_turns = "configs/cartpole.yaml" in words
    small = {
        "--trainer.accelerator": "cpu",
        "--trainer.default_root_dir": str(tmp_path),
        "--trainer.max_epochs": "1",
        "--model.init_args.llm.model": str(model_folder),
        "--data.num_envs": "4",
        "--data.turns_per_rollout" if by_turns else "--data.episodes_per_rollout": "8",
        "--data.eval_episodes": "4",
    }
    flags = [f"{name}={value}" for name, value in small.items()]
    monkeypatch.chdir(ROOT)
    if "--ckpt_path" in words:
        main(["fit", "--config", "configs/blackjack.yaml", *flags])
        if words[0] == "fit":
            flags[2] = "--trainer.max_epochs=2"
    if {"--print_config", "--help", "--model.help"} & set(words):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
        return
    main([*words, *flags])
    if words[0] == "fit":
        logged = set(scalars(tmp_path)) - {"epoch"}
        assert len(logged) > 20
        assert not {name for name in logged - TABLE if not PER_EVALUATION.fullmatch(name)}


@pytest.mark.parametrize("command", OTHERS)
def test_a_command_of_the_pages_parses(command, monkeypatch, capsys):
    """An option that was renamed is refused by the parser; nothing is run."""
    words = shlex.split(command)
    config = next((word for word in words if word.endswith(".yaml")), "configs/blackjack.yaml")
    monkeypatch.chdir(ROOT if (ROOT / config).exists() else ROOT / "docs" / "examples")
    with pytest.raises(SystemExit) as stop:
        main(words if "--model.help" in words else [*words, "--print_config"])
    assert stop.value.code == 0, capsys.readouterr().err


def test_metrics_in_the_source_and_in_the_table_are_the_same():
    """A number that nobody can look up helps nobody, nor does a row for one that is gone."""
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "lgym").rglob("*.py")))
    assert set(re.findall(rf'"({METRIC})"', source)) == TABLE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_names_on_a_page_exist(page):
    """A class path that is gone is the first thing that people copy."""
    text = page.read_text(encoding="utf-8")
    for name in sorted(set(re.findall(r"(?<![\w/.])lgym(?:\.[A-Za-z_]\w*)+", text))):
        parts = name.split(".")
        while True:
            try:
                found = importlib.import_module(".".join(parts))
                break
            except ModuleNotFoundError:
                parts.pop()
        for part in name.split(".")[len(parts) :]:
            found = getattr(found, part)


@pytest.mark.parametrize("page", PAGES[:2], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Sphinx checks the links of docs/."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_the_readmes_agent_plays():
    """The 12 lines are the first thing that people copy."""
    code = next(block for block in code_blocks(README, "python") if "TextAgent" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 14
    space: dict = {}
    exec(code, space)
    agent = space["FrozenLakeAgent"]()
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    observation, info = env.reset(seed=0)
    assert "0" in agent.format_observation(observation)
    for number, text in enumerate(agent.candidates(observation, info)):
        assert agent.extract_action(text).action == number
