"""`scripts/offline_table.py`: its logs, its table of action values, and a run from one."""

from __future__ import annotations

import json

import numpy as np
import pytest

import offline_table
from lgym.agents import BlackjackAgent
from lgym.data.logged.episodes import read_episodes
from lgym.envs import blackjack

BLACKJACK, MAZE = (offline_table.GAMES[name] for name in ("blackjack", "maze"))
AGENT = BlackjackAgent()
TWELVE, FIFTEEN = (12, 4, 0), (15, 4, 0)


def test_a_log_is_read_as_it_was_played(tmp_path):
    """Catches hands that two logs share, and rewards at the wrong turn."""
    paths = [tmp_path / f"{log}.jsonl" for log in (0, 1)]
    for log, path in enumerate(paths):
        offline_table.write_log(BLACKJACK, path, 200, log)
    first, second = (read_episodes([str(path)], AGENT) for path in paths)
    assert len(first) == len(second) == 200
    assert first != second
    assert {turn.reward for hand in first for turn in hand.turns[:-1]} == {0.0}
    assert {hand.turns[-1].reward for hand in first} == {-1.0, 0.0, 1.0}
    assert {turn.choice for hand in first for turn in hand.turns} == {0, 1}


@pytest.mark.parametrize(
    ("hands", "hits"),
    [
        ([[(TWELVE, "stay", 1.0)], [(TWELVE, "hit", -1.0)]], {TWELVE: 0.0}),
        ([[(TWELVE, "stay", -1.0)]], {TWELVE: 0.0}),  # nobody has tried to hit
        (  # by chance worth -1, by the better choice behind it 1
            [
                [(TWELVE, "stay", -0.5)],
                [(TWELVE, "hit", 0.0), (FIFTEEN, "hit", -1.0)],
                [(FIFTEEN, "stay", 1.0)],
            ],
            {TWELVE: 1.0, FIFTEEN: 0.0},
        ),
    ],
)
def test_a_table_takes_the_best_choice_that_was_logged(tmp_path, hands, hits):
    path = tmp_path / "hands.jsonl"
    turns = [
        [
            {"observation": AGENT.format_observation(state), "response": response, "reward": reward}
            for state, response, reward in hand
        ]
        for hand in hands
    ]
    path.write_text(
        "\n".join(json.dumps({"turns": hand, "terminated": True}) for hand in turns), encoding="utf-8"
    )
    policy = np.array([hits.get(state, 0.5) for state in blackjack.states()])
    assert offline_table.table_value(BLACKJACK, path) == pytest.approx(blackjack.policy_value(policy))


def test_a_table_gets_better_with_more_hands(tmp_path):
    values = []
    for hands in (500, 5000):
        offline_table.write_log(BLACKJACK, tmp_path / "hands.jsonl", hands, 0)
        values.append(offline_table.table_value(BLACKJACK, tmp_path / "hands.jsonl"))
    assert -0.3 < values[0] < values[1] < -0.06, values


def test_a_table_of_enough_play_knows_the_maze(tmp_path):
    """Also of episodes that the time limit ends, whose last turn led to what nobody has seen."""
    path = tmp_path / "maze.jsonl"
    offline_table.write_log(MAZE, path, 60, 0)
    ends = [json.loads(line)["truncated"] for line in path.read_text().splitlines()]
    assert {True, False} == set(ends)
    assert offline_table.table_value(MAZE, path) == pytest.approx(-6.84)
    offline_table.write_log(MAZE, path, 1, 0)
    assert offline_table.table_value(MAZE, path) < -10
