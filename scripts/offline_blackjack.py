"""Writes a table of what is learned from logged random hands of Blackjack, by action values and by a model.

    python scripts/offline_blackjack.py docs/results.md --hands 500 2000 20000 --logs 0 1 2

Values are exact, of the greedy policy, and the mean over the logs; every log has hands of its own. Called
again it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
import numpy as np

import lgym.envs  # noqa: F401
from lgym.agents import BlackjackAgent
from lgym.cli.bench import Run, carry_out
from lgym.cli.run_metrics import read_scalars
from lgym.cli.runs import newest_run
from lgym.data.random_play import random_turns
from lgym.envs import blackjack
from results_table import Table, markdown, replaced

CONFIG = Path("configs/blackjack_offline.yaml")
MODELS = {
    "CQL": ("--model", "lgym.modules.CQL"),
    "IQL": ("--model", "lgym.modules.IQL"),
    # Every choice of the log weighs the same, whatever came of it:
    "behavior cloning": ("--model", "lgym.modules.IQL", "--model.init_args.advantage_temperature", "1e6"),
}


def random_hands(hands: int, log: int) -> Iterator[list[dict[str, Any]]]:
    """The turns of so many hands of random play, as `lgym.data.logged` reads them."""
    env, agent = gymnasium.make("Blackjack-v1"), BlackjackAgent()
    rng = np.random.default_rng(log)
    for seed in islice(count(log * 1_000_000), hands):
        yield [
            {"observation": turn.question[0], "response": turn.answer, "reward": turn.reward}
            for turn in random_turns(env, agent, seed, rng, env.action_space)
        ]


def write_log(path: Path, hands: int, log: int) -> None:
    """Write the hands as JSON Lines, an episode each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for turns in random_hands(hands, log):
            file.write(json.dumps({"turns": turns, "terminated": True, "truncated": False}) + "\n")


def table_value(path: Path) -> float:
    """Exact value of the greedy policy of a table of action values, by value iteration over what was logged.

    A choice that was never logged in a state is not taken there; where none was, both are as likely.
    """
    agent = BlackjackAgent()
    number = {agent.format_observation(state): row for row, state in enumerate(blackjack.states())}
    steps: list[tuple[int, int, float, int]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        turns = json.loads(line)["turns"]
        states = [number[turn["observation"]] for turn in turns] + [-1]
        for at, turn in enumerate(turns):
            steps.append((states[at], agent.actions.index(turn["response"]), turn["reward"], states[at + 1]))
    state, choice, reward, following = (np.array(column) for column in zip(*steps, strict=True))
    counts = np.zeros((len(number), 2))
    np.add.at(counts, (state, choice), 1)
    q = np.where(counts > 0, 0.0, -np.inf)
    for _ in range(30):  # no hand has more turns
        best = np.where(following < 0, 0.0, q.max(axis=1)[following])
        sums = np.zeros_like(counts)
        np.add.at(sums, (state, choice), reward + best)
        q = np.where(counts > 0, sums / counts.clip(min=1), -np.inf)
    best = q == q.max(axis=1, keepdims=True)
    return blackjack.policy_value(best[:, blackjack.HIT] / best.sum(axis=1))


def model_value(run: Run) -> float:
    """The last exact value of a run's greedy policy."""
    folder = newest_run(run.root)
    assert folder is not None
    return read_scalars(folder)["blackjack/value_greedy"][-1].value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="the Markdown file to write the table to")
    parser.add_argument("--hands", type=int, nargs="+", default=[500, 2000, 20_000])
    parser.add_argument("--logs", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--learners", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--runs", type=Path, default=Path("runs/offline"), help="folder of logs and runs")
    arguments = parser.parse_args()
    rows = []
    for hands in arguments.hands:
        logs = [arguments.runs / f"{hands}-{log}.jsonl" for log in arguments.logs]
        for path, log in zip(logs, arguments.logs, strict=True):
            write_log(path, hands, log)
        cells = [f"{hands:,}", _cell(list(map(table_value, logs)))]
        for name in arguments.learners:
            runs = [
                Run(
                    CONFIG,
                    log,
                    arguments.runs / f"{name.replace(' ', '_')}-{hands}-{log}",
                    (*MODELS[name], "--data.logged_episodes", f'["{path}"]'),
                )
                for path, log in zip(logs, arguments.logs, strict=True)
            ]
            cells.append(_cell(list(map(model_value, carry_out(runs)))))
        rows.append(tuple(cells))
    header = ("hands", "table of action values", *arguments.learners)
    kind = Table(" from logged hands", header, 1, lambda _: (), Path(__file__).name)
    text = arguments.page.read_text(encoding="utf-8") if arguments.page.exists() else ""
    arguments.page.write_text(replaced(kind, text, markdown(kind, rows)), encoding="utf-8")


def _cell(values: list[float]) -> str:
    """The mean and, in brackets, each."""
    return f"{fmean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})"


if __name__ == "__main__":
    main()
