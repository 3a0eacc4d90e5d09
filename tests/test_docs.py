"""README and docs/: commands run, names exist, links lead somewhere, every metric is in the table."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
from pathlib import Path

import gymnasium
import pytest

from helpers.runs import scalars
from lgym.cli import PROGRAMS, main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
METRIC = r"(?:rollout|response|policy|value|loss|optim|time|guard|blackjack|maze|q)/\w+"
TABLE = set(re.findall(rf"`({METRIC})`", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")))
PER_EVALUATION = re.compile(
    r"(val|test)_(greedy|sampled)/(return_mean|return_std|return_ci95|length_mean|length_std|looping_rate)"
)


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
            own = 2 if words[1:2] == ["--extras"] else 0  # bootstrap.py's option with its value
            found.add(shlex.join(words[1 + own :]))
    return sorted(command for command in found if not command.startswith("test") or "--config" in command)


ENDS = {"--help", "--model.help", "--print_config"}
"""Options that print and end with status 0."""

RUNS = {}
"""The shortest README command for each subcommand, configuration or environment, and with a checkpoint or
not."""

for _words in sorted(map(shlex.split, commands(README)), key=len, reverse=True):
    _named = next((option for option in ("--config", "--data.env") if option in _words), None)
    if _named is not None and not ENDS & set(_words):
        RUNS[_words[0], _words[_words.index(_named) + 1], "--ckpt_path" in _words] = _words

OTHERS = {command for page in PAGES for command in commands(page)} - set(map(shlex.join, RUNS.values()))


def small(folder: Path, model_folder: Path, words: list[str], rollouts: int = 1) -> list[str]:
    """Options for a run of seconds on the tiny model."""
    amount = "turns" if "configs/cartpole.yaml" in words else "episodes"
    options = {
        "trainer.accelerator": "cpu",
        "trainer.default_root_dir": folder,
        "trainer.max_epochs": rollouts,
        "model.init_args.llm.model": model_folder,
        "data.num_envs": 4,
        f"data.{amount}_per_rollout": 8,
        "data.eval_episodes": 4,
        "data.max_episode_steps": 20,
    }
    if "configs/blackjack.yaml" in words:
        options["model.init_args.llm.lora.last_blocks"] = 1  # it says 20, of 30
    return [f"--{name}={value}" for name, value in options.items()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model_folder) -> Path:
    """The folder of a run of the first command."""
    folder = tmp_path_factory.mktemp("trained")
    words = RUNS["fit", "configs/blackjack.yaml", False]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        main([*words, *small(folder, model_folder, words)])
    return folder


def test_the_pages_have_commands():
    """No command found would pass everything below."""
    assert len(RUNS) >= 8
    assert len(OTHERS) >= 8


@pytest.mark.parametrize("words", RUNS.values(), ids=shlex.join)
def test_a_readme_command_runs(words, tmp_path, model_folder, trained, monkeypatch):
    """Each `lgym` command of the README, as it stands there, on the tiny model and few episodes."""
    monkeypatch.chdir(ROOT)
    if words == RUNS["fit", "configs/blackjack.yaml", False]:
        folder = trained
    else:
        folder = tmp_path / "run"
        resumes = "--ckpt_path" in words
        if resumes:
            shutil.copytree(trained, folder)
        main([*words, *small(folder, model_folder, words, rollouts=2 if resumes else 1)])
    if words[0] == "fit":
        logged = set(scalars(folder)) - {"epoch"}
        assert len(logged) > 20
        assert not {name for name in logged - TABLE if not PER_EVALUATION.fullmatch(name)}


@pytest.mark.parametrize("command", sorted(OTHERS))
def test_a_command_of_the_pages_parses(command, monkeypatch, capsys):
    """An option that was renamed is refused by the parser; nothing is run."""
    words = shlex.split(command)
    if words[0] in PROGRAMS:
        importlib.import_module(PROGRAMS[words[0]]).parser().parse_args(words[1:])
        return
    config = next((word for word in words if word.endswith(".yaml")), "configs/blackjack.yaml")
    monkeypatch.chdir(ROOT if (ROOT / config).exists() else ROOT / "docs" / "examples")
    with pytest.raises(SystemExit) as stop:
        main(words if ENDS & set(words) else [*words, "--print_config"])
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
