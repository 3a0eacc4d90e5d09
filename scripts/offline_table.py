"""Writes a table of what is learned from logged random play, by action values and by a model.

    python scripts/offline_table.py docs/results.md blackjack --episodes 500 2000 20000 --logs 0 1 2

Values are exact, of the greedy policy, and the mean over the logs; every log has episodes of its own. Called
again it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
import numpy as np

import lgym.envs  # noqa: F401
from held_table import Table, markdown, replaced
from lgym.agents import BlackjackAgent, MazeAgent, TextAgent
from lgym.cli.bench import Run, carry_out
from lgym.cli.run_metrics import read_scalars
from lgym.cli.runs import newest_run
from lgym.data.random_play import random_turns
from lgym.envs import blackjack, maze


@dataclass(frozen=True)
class Game:
    """A game whose policies have exact values.

    Attributes:
        env: its id.
        agent: its words.
        states: what is observed in each of S states.
        value: of a policy [S, C].
        metric: of a run, that of its greedy policy.
        gamma: discount per turn of the table.
        config: the YAML of the models.
        options: what it leaves open.
    """

    env: str
    agent: TextAgent
    states: list[str]
    value: Callable[[np.ndarray], float]
    metric: str
    gamma: float
    config: Path
    options: tuple[str, ...] = ()
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)


BLACKJACK, MAZE = BlackjackAgent(), MazeAgent()
GAMES = {
    "blackjack": Game(
        "Blackjack-v1",
        BLACKJACK,
        list(map(BLACKJACK.format_observation, blackjack.states())),
        lambda policy: blackjack.policy_value(policy[:, blackjack.HIT]),
        "blackjack/value_greedy",
        1.0,
        Path("configs/blackjack_offline.yaml"),
        env_kwargs={"sab": False},
    ),
    "maze": Game(
        "lgym/Maze-v0",
        MAZE,
        list(map(MAZE.format_observation, maze.START_CELLS)),
        maze.policy_value,
        "maze/value_greedy",
        0.95,
        Path("configs/maze.yaml"),
        ("--trainer.max_epochs", "6", "--data.replay.init_args.learning_starts", "1"),
    ),
}
MODELS = {
    "DQN": ("--model", "lgym.modules.DQN"),
    "CQL": ("--model", "lgym.modules.CQL"),
    "IQL": ("--model", "lgym.modules.IQL"),
    # Every choice of the log weighs the same, whatever came of it:
    "behavior cloning": ("--model", "lgym.modules.IQL", "--model.init_args.advantage_temperature", "1e6"),
}


def write_log(game: Game, path: Path, episodes: int, log: int) -> None:
    """Write random play as JSON Lines, an episode each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    env = gymnasium.make(game.env, **game.env_kwargs)
    rng = np.random.default_rng(log)
    with path.open("w", encoding="utf-8") as file:
        for seed in range(log * 1_000_000, log * 1_000_000 + episodes):
            played = list(random_turns(env, game.agent, seed, rng, env.action_space))
            turns = [
                {"observation": turn.question[0], "response": turn.answer, "reward": turn.reward}
                for turn in played
            ]
            ends = {"terminated": played[-1].terminated, "truncated": played[-1].truncated}
            file.write(json.dumps({"turns": turns, **ends}) + "\n")


def table_value(game: Game, path: Path) -> float:
    """Exact value of the greedy policy of a table of action values, by value iteration over what was logged.

    A choice that was never logged in a state is not taken there; where none was, all are as likely. The last
    turn of an episode that a time limit ended says nothing, as nobody knows what it led to.
    """
    number = {text: row for row, text in enumerate(game.states)}
    steps: list[tuple[int, int, float, int]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        episode = json.loads(line)
        states = [number[turn["observation"]] for turn in episode["turns"]] + [-1]
        for at, turn in enumerate(episode["turns"][: None if episode["terminated"] else -1]):
            choice = game.agent.actions.index(turn["response"])
            steps.append((states[at], choice, turn["reward"], states[at + 1]))
    state, choice, following = np.array([(step[0], step[1], step[3]) for step in steps]).T
    reward = np.array([step[2] for step in steps])
    counts = np.zeros((len(number), len(game.agent.actions)))
    np.add.at(counts, (state, choice), 1)
    q = np.where(counts > 0, 0.0, -np.inf)
    for _ in range(1000):
        best = np.where(following < 0, 0.0, np.nan_to_num(q.max(axis=1)[following], neginf=0.0))
        sums = np.zeros_like(counts)
        np.add.at(sums, (state, choice), reward + game.gamma * best)
        q = np.where(counts > 0, sums / counts.clip(min=1), -np.inf)
    q[np.isneginf(q).all(axis=1)] = 0.0
    likeliest: np.ndarray = q >= q.max(axis=1, keepdims=True) - 1e-9
    return game.value(likeliest / likeliest.sum(axis=1, keepdims=True))


def model_value(game: Game, run: Run) -> float:
    """The last exact value of a run's greedy policy."""
    folder = newest_run(run.root)
    assert folder is not None
    return read_scalars(folder)[game.metric][-1].value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="the Markdown file to write the table to")
    parser.add_argument("game", choices=list(GAMES))
    parser.add_argument("--episodes", type=int, nargs="+", required=True, help="of a log, of each row")
    parser.add_argument("--logs", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--learners", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--runs", type=Path, default=Path("runs/offline"), help="folder of logs and runs")
    arguments = parser.parse_args()
    game = GAMES[arguments.game]
    rows = []
    for episodes in arguments.episodes:
        logs = [arguments.runs / f"{arguments.game}-{episodes}-{log}.jsonl" for log in arguments.logs]
        for path, log in zip(logs, arguments.logs, strict=True):
            write_log(game, path, episodes, log)
        cells = [f"{episodes:,}", _cell([table_value(game, path) for path in logs])]
        for name in arguments.learners:
            runs = [
                Run(
                    name,
                    ("--config", str(game.config)),
                    log,
                    arguments.runs / f"{name.replace(' ', '_')}-{path.stem}",
                    (*MODELS[name], *game.options, "--data.logged_episodes", f'["{path}"]'),
                )
                for path, log in zip(logs, arguments.logs, strict=True)
            ]
            cells.append(_cell([model_value(game, run) for run in carry_out(runs)]))
        rows.append(tuple(cells))
    header = ("episodes", "table of action values", *arguments.learners)
    kind = Table(f" from logged {arguments.game}", header, Path(__file__).name)
    text = arguments.page.read_text(encoding="utf-8") if arguments.page.exists() else ""
    arguments.page.write_text(replaced(kind, text, markdown(kind, rows)), encoding="utf-8")


def _cell(values: list[float]) -> str:
    """The mean and, in brackets, each."""
    return f"{fmean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})"


if __name__ == "__main__":
    main()
