"""`lgym check` of environments in which a first try fails: slow ones, broken wrappers, episodes without end."""

from __future__ import annotations

import importlib.util
import json
import signal
import time
from pathlib import Path

import gymnasium
import pytest
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Text, Tuple

from helpers import letters
from helpers.echo import EchoEnv

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "flat_actions.py"


class SlowEnv(EchoEnv):
    """Half a second a turn, and hundreds of turns."""

    def __init__(self) -> None:
        super().__init__(turns=400)

    def step(self, action):
        time.sleep(0.5)
        return super().step(action)


class InterruptedEnv(EchoEnv):
    """Its user presses Ctrl-C at the third turn."""

    turns_played = 0

    def step(self, action):
        InterruptedEnv.turns_played += 1
        if InterruptedEnv.turns_played == 3:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


class Doubled(gymnasium.Wrapper):
    """Promises six actions and passes all of them on to an environment of three that indexes by them."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = Discrete(6)

    def step(self, action):
        [0, 1, 2][action]
        return self.env.step(action)


class NestedEnv(EchoEnv):
    """Pays for actions of two parts that its space has."""

    def __init__(self, kind: str = "tuple") -> None:
        super().__init__()
        parts = {"move": Discrete(3), "jump": Discrete(2)}
        self.action_space = Tuple(parts.values()) if kind == "tuple" else Dict(parts)

    def step(self, action):
        assert self.action_space.contains(action)
        return 0, 1.0, True, False, {}


class WordsEnv(letters.LetterEnv):
    """Takes words of capitals."""

    action_space = Text(1000, charset="ABC")

    def step(self, action):
        return 0, 1.0, True, False, {}


for name, env in (
    ("Slow-v0", SlowEnv),
    ("Interrupted-v0", InterruptedEnv),
    ("Nested-v0", NestedEnv),
    ("Words-v0", WordsEnv),
    ("Endless-v0", lambda: EchoEnv(turns=40)),
):
    if name not in gymnasium.registry:
        gymnasium.register(name, env)


def test_the_time_is_up_in_a_slow_environment(checked, tmp_path):
    """Two seconds are not enough for the model; what is known by then is told."""
    started = time.perf_counter()
    status, said = checked(data__env="Slow-v0", seconds=2, json=tmp_path / "check.json")
    assert time.perf_counter() - started < 30
    assert status == 0
    assert "Slow-v0 in the words of EchoAgent" in said
    assert "Stopped after 2 seconds, while" in said
    assert "--seconds 4 gives it longer" in said
    assert "Nothing stands in the way, as far as this went." in said
    assert json.loads((tmp_path / "check.json").read_text())["interrupted"].startswith("after 2 seconds")


def test_ctrl_c_gives_the_findings_so_far(checked):
    """And no traceback."""
    InterruptedEnv.turns_played = 0
    status, said = checked(data__env="Interrupted-v0")
    assert status == 0
    assert "Stopped by Ctrl-C, while playing at random" in said


def test_no_episode_ends_within_a_rollout(checked):
    """8 environments of 4 turns each, and episodes of 40."""
    rollouts = {"data__episodes_per_rollout": None, "data__turns_per_rollout": 32}
    status, said = checked(data__env="Endless-v0", **rollouts)
    assert status == 0
    assert "warning: No episode ends within a rollout" in said
    assert "data.turns_per_rollout: 320" in said


def test_a_wrapper_that_cannot_work_is_a_problem(checked):
    """Its error, the action and the space, before a model is loaded."""
    wrapped = {"data__wrappers": "[{class_path: test_check_findings.Doubled}]"}
    status, said = checked(data__agent="lgym.agents.GeneralAgent", **wrapped)
    assert status == 1
    assert "IndexError: list index out of range" in said
    assert "Its action space is Discrete(6)" in said
    assert "data.wrappers" in said
    assert "A prompt" not in said


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_the_wrapper_of_the_documentation_flattens_actions(checked, kind, monkeypatch):
    """And a refusal without it names the page."""
    nested = {"data__env": "Nested-v0", "data__agent": "lgym.agents.GeneralAgent"}
    nested |= {"data__env_kwargs": f"{{kind: {kind}}}"}
    status, said = checked(**nested)
    assert status == 1
    assert "docs/environments.md" in said
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    status, said = checked(**nested, data__wrappers="[{class_path: flat_actions.FlatActions}]")
    assert status == 0, said
    assert "What the policy makes of its candidates now (6)" in said
    spec = importlib.util.spec_from_file_location("flat_actions_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = [3, 2] if kind == "tuple" else [2, 3]  # a Dict sorts its keys
    assert module.FlatActions(NestedEnv(kind)).action_space == MultiDiscrete(sizes)
