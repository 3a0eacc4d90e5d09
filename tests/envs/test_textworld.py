"""TextWorld as a Gymnasium environment: equal seeds are equal games, compiled once, and nothing is left
behind."""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("textworld")

from lgym.envs import make_env
from lgym.envs.textworld import TextWorldEnv, parts
from lgym.envs.textworld_games import made_games

SMALL = {"rooms": 2, "objects": 3, "quest_length": 2, "games": 2, "first_game": 20}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    """A cache folder of the tests' own, so that games are compiled in them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LGYM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def env():
    made = make_env("lgym/TextWorld-v0", SMALL)
    yield made
    made.close()


def win(env, seed):
    """The rewards of TextWorld's own way to win."""
    _, info = env.reset(seed=seed)
    rewards = []
    while not info["won"]:
        _, reward, terminated, _, info = env.step(info["policy_commands"][0])
        assert terminated == info["won"]
        rewards.append(reward)
    return rewards


def test_it_keeps_gymnasiums_rules():
    """Spaces, seeds, types, as Gymnasium's own checker sees them, which plays random texts."""
    check_env(TextWorldEnv(**SMALL), skip_render_check=True)
    assert gymnasium.spec("lgym/TextWorld-v0").max_episode_steps == 50


def test_an_observation_says_goal_place_and_inventory(env):
    observation, info = env.reset(seed=0)
    said = parts(observation)
    assert list(said) == ["Goal", "Place", "Inventory"]
    assert said["Goal"] == " ".join(info["objective"].split())
    assert said["Place"].startswith("-= ")
    assert said["Inventory"].startswith("You are carrying")
    assert "$$" not in observation  # of TextWorld's banner
    assert ">" not in observation  # the interpreter's prompt
    assert info["max_score"] == 1
    assert (info["won"], info["lost"], info["score"]) == (False, False, 0)


def test_a_reply_is_what_the_game_says_and_no_more(env):
    """The interpreter goes on with its prompt and a status line, and after a win asks what to do."""
    _, info = env.reset(seed=0)
    replies = []
    while not info["won"]:
        command = info["policy_commands"][0]
        observation, _, _, _, info = env.step(command)
        replies.append(parts(observation)["Reply"])
    assert command.startswith(("take", "drop", "insert", "put", "open", "close", "lock", "unlock", "eat"))
    assert replies[0].startswith("You ")
    assert not any(word in reply for reply in replies for word in (">", "=-", "RESTART"))


def test_a_seed_is_a_game(env):
    """Seeds 0, 2, 4 are the first of two games, 1, 3, 5 the second; the same in another environment, in any
    order."""
    first = [env.reset(seed=seed) for seed in (0, 1, 2, 3)]
    assert first[0] == first[2]
    assert first[1] == first[3]
    assert first[0][0] != first[1][0]
    other = make_env("lgym/TextWorld-v0", SMALL)
    assert [other.reset(seed=seed) for seed in (3, 2)] == [first[3], first[2]]
    other.close()


def test_nothing_of_an_episode_is_left_in_the_next(env):
    before = env.reset(seed=0)
    first = win(env, 0)
    assert env.reset(seed=0) == before
    assert win(env, 0) == first


def test_winning_pays_one(env):
    assert win(env, 0) == win(env, 1) == [0.0, 1.0]


def test_a_command_that_the_game_asks_about_is_put_otherwise_or_not_done():
    """In this game one locker's name ends with the other's. The interpreter asks which one is meant, where a
    thing is taken from it or put into it, and understands no answer."""
    ambiguous = {"rooms": 1, "objects": 3, "quest_length": 4, "quest_breadth": [1, 5], "first_game": 141}
    env = make_env("lgym/TextWorld-v0", ambiguous | {"games": 1, "show_done": True})
    _, info = env.reset(seed=0)
    for _ in range(3):
        taking = info["policy_commands"][0]
        before, _, _, _, info = env.step(taking)
    assert taking == "take Microsoft limited edition keycard from locker"
    assert parts(before)["Reply"] == "You take the Microsoft limited edition keycard from the locker."
    after, *_ = env.step("insert Microsoft limited edition keycard into locker")
    assert parts(after)["Reply"].startswith("Which do you mean")
    assert {**parts(after), "Reply": ""} == {**parts(before), "Reply": ""}
    assert env.step(info["policy_commands"][0])[4]["won"]
    env.close()


def test_intermediate_rewards_pay_the_way():
    """Two commands to win: each is half of the way. What leads away costs what going back brings."""
    env = make_env("lgym/TextWorld-v0", SMALL | {"intermediate_rewards": True})
    assert win(env, 0) == [0.5, 0.5 + 1.0]
    _, info = env.reset(seed=0)
    there = info["policy_commands"][0]
    back = re.sub("^take (.+) from (.+)$", r"insert \1 into \2", there)
    assert back != there
    assert [env.step(command)[1] for command in (there, back, there)] == [0.5, -0.5, 0.5]
    env.close()


@pytest.mark.parametrize(
    "command", ["xyzzy", "", "save", "look\ninventory", "quit", "take every thing", "é€", "go " * 100]
)
def test_other_text_than_commands_changes_nothing(env, command, monkeypatch, tmp_path):
    """The interpreter would write a file for `save`, and end for `quit`."""
    monkeypatch.chdir(tmp_path)
    observation, before = env.reset(seed=0)
    after, reward, terminated, _, info = env.step(command)
    lines = parts(after)
    said = " ".join(lines.pop("Reply").split())
    assert lines == parts(observation)
    assert said == f"You can't {' '.join(command.split())[:198]}."
    assert (reward, terminated, info) == (0.0, False, before)
    assert list(tmp_path.iterdir()) == []


def test_what_is_done_is_listed_without_what_was_refused():
    env = make_env("lgym/TextWorld-v0", SMALL | {"show_done": True})
    for _ in range(2):  # an episode begins anew
        observation, info = env.reset(seed=0)
        assert "Done" not in parts(observation)
        taken = []
        while not info["won"]:
            command = info["policy_commands"][0]
            assert parts(env.step("sing")[0]).get("Done", ".") == f"{', '.join(taken)}."
            taken.append(command)
            observation, _, _, _, info = env.step(command.upper())
            assert parts(observation)["Done"] == f"{', '.join(taken)}."
    env.close()


def test_case_and_space_of_a_command_do_not_matter(env):
    _, info = env.reset(seed=0)
    command = info["policy_commands"][0]
    _, _, _, _, info = env.step(f"  {command.upper().replace(' ', '  ')} ")
    assert info["policy_commands"][0] != command


def test_games_are_compiled_once_and_kept_by_their_settings(env):
    env.reset(seed=0)
    path = made_games(2, 3, 2, 2, 20).path(0)
    assert path.name == "rooms2-objects3-quest2-seed20.z8"
    compiled = path.stat().st_mtime_ns
    env.reset(seed=0)
    assert path.stat().st_mtime_ns == compiled
    path.unlink()  # as where a compilation was interrupted: the .z8 comes last
    env.reset(seed=0)
    assert path.stat().st_mtime_ns > compiled
    assert sorted(file.suffix for file in path.parent.iterdir() if file.stem == path.stem) == [".json", ".z8"]
    assert all(file.is_file() for file in path.parent.iterdir())


def test_ranges_are_kept_apart_and_drawn_by_number():
    train, held_out = made_games((2, 3), 4, (2, 3), 50, 0), made_games((2, 3), 4, (2, 3), 50, 50)
    names = [[path.stem for path in games.paths] for games in (train, held_out)]
    assert [[int(name.split("seed")[1]) for name in of_one] for of_one in names] == [
        list(range(50)),
        list(range(50, 100)),
    ]
    assert {name.split("-seed")[0] for name in names[0]} == {
        f"rooms{rooms}-objects4-quest{steps}" for rooms in (2, 3) for steps in (2, 3)
    }
    assert train.paths[10:] == made_games((2, 3), 4, (2, 3), 40, 10).paths


@pytest.mark.slow
def test_a_breadth_of_one_to_five_makes_the_games_of_tw_make(tmp_path):
    """A breadth that does not reach the generator makes game 1 another one: its quest has the computer."""
    script = Path(sys.executable).parent / "tw-make"
    options = [
        "custom",
        "--world-size",
        "2",
        "--nb-objects",
        "3",
        "--quest-length",
        "4",
        "--seed",
        "1",
        "--silent",
        "--output",
    ]
    subprocess.run([sys.executable, script, *options, tmp_path / "game.z8"], check=True)
    ours = made_games(2, 3, 4, 1, 1, (1, 5)).path(0)
    assert ours.name == "rooms2-objects3-quest4-breadth1to5-seed1.z8"
    assert json.loads(ours.with_suffix(".json").read_text()) == json.loads(
        (tmp_path / "game.json").read_text()
    )
    linear = made_games(2, 3, 4, 1, 1).path(0)
    assert "computer" in linear.with_suffix(".json").read_text()
    assert "computer" not in ours.with_suffix(".json").read_text()


@pytest.mark.slow
def test_processes_may_compile_the_same_game_at_once(tmp_path):
    """Into an empty folder, with hash seeds of their own; both play the same game."""
    code = f"from lgym.envs import make_env\nprint(make_env('lgym/TextWorld-v0', {SMALL}).reset(seed=1))"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "LGYM_CACHE": str(tmp_path), "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert outputs[0] == outputs[1]
    assert b"Goal: " in outputs[0]


def test_it_can_be_pickled_and_run_in_workers(env):
    expected = env.reset(seed=1)
    env.step(expected[1]["admissible_commands"][0])
    assert pickle.loads(pickle.dumps(env.unwrapped)).reset(seed=1) == expected
    makers = [lambda: make_env("lgym/TextWorld-v0", SMALL)] * 2
    vector = gymnasium.vector.AsyncVectorEnv(
        makers, shared_memory=False
    )  # in which Gymnasium never renews a text
    observations, infos = vector.reset(seed=[0, 1])
    assert observations[1] == expected[0]
    assert list(infos["admissible_commands"][1]) == expected[1]["admissible_commands"]
    vector.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_resets_leave_nothing_open(env):
    """An interpreter that loads one game after another keeps 0.4 MB of each: 24 MB over these."""

    def left() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for seed in range(20):
        env.reset(seed=seed)
    files, kilobytes = left()
    for seed in range(60):
        env.reset(seed=seed)
    assert left()[0] == files
    assert left()[1] < kilobytes + 10_000


def test_files_are_games_too(env, tmp_path):
    """A folder, a pattern and a path, compiled or not; the .z8 and the .json of one game are one."""
    expected = [env.reset(seed=seed)[0] for seed in (0, 1)]
    for number, name in enumerate(("a", "b")):
        path = made_games(2, 3, 2, 2, 20).path(number)
        for suffix in (".z8", ".json"):
            (tmp_path / name).with_suffix(suffix).write_bytes(path.with_suffix(suffix).read_bytes())
    for files in (str(tmp_path), str(tmp_path / "*.z8"), [str(tmp_path / "a.json"), str(tmp_path / "b.z8")]):
        given = make_env("lgym/TextWorld-v0", {"files": files})
        assert [given.reset(seed=seed)[0] for seed in (0, 1)] == expected
        assert given.reset(seed=2)[0] == expected[0]
        given.close()
    (tmp_path / "a.z8").unlink()
    assert make_env("lgym/TextWorld-v0", {"files": str(tmp_path / "a.json")}).reset(seed=0)[0] == expected[0]


def test_files_that_are_no_games_are_refused(tmp_path):
    (tmp_path / "zork.z8").write_bytes(b"")
    (tmp_path / "old.ulx").write_bytes(b"")
    for name, message in (
        ("nothing*", "no game at"),
        ("zork.z8", r"no zork\.json beside"),
        ("old.ulx", r"give \.z8"),
    ):
        with pytest.raises(ValueError, match=message):
            TextWorldEnv(files=str(tmp_path / name))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"games": 0}, "games is 0"),
        ({"first_game": -1}, "first_game -1"),
        ({"rooms": 0}, "rooms is 0"),
        ({"rooms": [3, 2]}, r"rooms is \(3, 2\)"),
        ({"quest_length": [1, 2, 3]}, r"quest_length is \(1, 2, 3\)"),
        ({"objects": -1}, "objects is -1"),
        ({"quest_breadth": [0, 2]}, r"quest_breadth is \(0, 2\)"),
    ],
)
def test_settings_that_make_no_game_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TextWorldEnv(**settings)


def test_a_game_that_textworld_cannot_make_says_which():
    """There are not names enough for that many objects."""
    env = TextWorldEnv(rooms=1, objects=1000, quest_length=1, games=1)
    with pytest.raises(ValueError, match="1000 objects and a quest of 1 steps from seed 0"):
        env.reset(seed=0)


def test_without_textworld_the_way_out_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ValueError, match=r'pip install "lgym\[textworld\]"'):
        make_env("lgym/TextWorld-v0")
