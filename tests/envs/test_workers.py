"""Environments in worker processes: they must be the environments that they are in this process, and be gone
at the end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from helpers import echo  # noqa: F401  (registers the environments)
from lgym.envs import make_env
from lgym.envs.workers import EnvironmentRaisedError, LocalEnv, WorkerLostError, worker_envs

SPACES = {
    "discrete": spaces.Discrete(5, start=3),
    "box": spaces.Box(-1, 1, (2, 3), np.float32),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "text": spaces.Text(12),
    "tuple": spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))),
    "dict": spaces.Dict(
        {"text": spaces.Text(5), "place": spaces.Box(0, 1, (2,), np.float64), "lives": spaces.Discrete(3)}
    ),
}


class SpaceEnv(gymnasium.Env):
    """Shows draws of a space, takes draws of it as actions, and tells things that no array holds."""

    def __init__(self, kind: str) -> None:
        self.observation_space = self.action_space = SPACES[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), self._info(None)

    def step(self, action):
        return self.observation_space.sample(), np.float32(0.1), np.bool_(False), False, self._info(action)

    def _info(self, action):
        return {
            "admissible_commands": ["go east", "open door"][: int(self.np_random.integers(3))],
            "action_mask": self.np_random.integers(2, size=3).astype(np.int8),
            "won": False,
            "moves": 3,
            "score": np.float32(0.5),
            "nested": {"said": "hello", "facts": [("at", "P", "kitchen")]},
            "nothing": None,
            "took": action,
            "pid": os.getpid(),
        }


class MoodyEnv(gymnasium.Env):
    """Does what it is told: hang, raise, raise what no pickle takes, answer what no pickle takes, nap, exit."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(7)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        if action == 1:
            time.sleep(30)
        if action == 2:
            raise ValueError("no such door")
        if action == 3:
            raise type("UnknownError", (Exception,), {})("from nowhere")
        if action == 5:
            time.sleep(0.6)
        if action == 6:
            sys.exit("the window was closed")
        return 0, 0.0, False, False, {"function": (lambda: 0) if action == 4 else None}


for name, env in (("Space-v0", SpaceEnv), ("Moody-v0", MoodyEnv)):
    if name not in gymnasium.registry:
        gymnasium.register(name, env)


@pytest.fixture
def workers():
    """Makes environments in workers and closes them."""
    made = []

    def start(env_id, count=1, timeout=20.0, **kwargs):
        found = worker_envs(partial(make_env, env_id, kwargs), count, timeout)
        made.extend(found)
        return found

    yield start
    for env in made:
        env.close()
    assert multiprocessing.active_children() == []


def ask(env, method, *args, **kwargs):
    env.send(method, *args, **kwargs)
    return env.receive()


def same(a, b) -> bool:
    """Equal in value and in every type."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a == b


def test_everything_comes_over_as_it_is(workers):
    """Packed into AsyncVectorEnv's arrays, a list of commands would come back as an object array, a text cut,
    an int as int64. Actions are drawn on the other side too, by the same seed."""
    for kind in SPACES:
        here, [there] = LocalEnv(make_env("Space-v0", {"kind": kind})), workers("Space-v0", kind=kind)
        assert there.name == here.name == "Space-v0"
        answers = []
        for env in (here, there):
            seen = [ask(env, "reset", seed=7)]
            ask(env, "action_space.seed", 7)
            for _ in range(3):
                action = ask(env, "action_space.sample")
                seen += [action, ask(env, "step", action)]
            answers.append(seen)
        pids = {
            answer[-1].pop("pid")
            for answer in answers[1]
            if isinstance(answer, tuple) and isinstance(answer[-1], dict)
        }
        for answer in answers[0]:
            if isinstance(answer, tuple) and isinstance(answer[-1], dict):
                assert answer[-1].pop("pid") == os.getpid()
        assert len(pids) == 1
        assert os.getpid() not in pids
        assert same(*answers), kind
        there.close()


def test_workers_work_at_the_same_time(workers):
    """Two naps of 0.6 seconds take less than 1.2 together."""
    envs = workers("Moody-v0", count=2)
    for env in envs:
        ask(env, "reset", seed=0)
    started = time.perf_counter()
    for env in envs:
        env.send("step", 5)
    for env in envs:
        env.receive()
    assert 0.6 <= time.perf_counter() - started < 1.1


def test_an_environments_error_comes_with_its_traceback(workers):
    """Also an exception, or an answer, that cannot be pickled: AsyncVectorEnv would wait for ever, or blame
    itself. And the worker goes on."""
    [env] = workers("Moody-v0")
    ask(env, "reset", seed=0)
    said_by_action = {2: "ValueError: no such door", 3: "UnknownError: from nowhere", 4: "pickle"}
    for action, said in {**said_by_action, 6: "SystemExit: the window was closed"}.items():
        with pytest.raises(EnvironmentRaisedError) as raised:
            ask(env, "step", action)
        assert said in raised.value.said
    with pytest.raises(EnvironmentRaisedError, match='raise ValueError\\("no such door"\\)'):
        ask(env, "step", 2)
    assert ask(env, "step", 0)[0] == 0


def test_an_environment_that_exits_does_not_end_the_run():
    """Catches a run that is gone without a word, since a game's window was closed."""
    env = LocalEnv(make_env("Moody-v0"))
    ask(env, "reset", seed=0)
    with pytest.raises(EnvironmentRaisedError, match="sys.exit"):
        ask(env, "step", 6)


def test_an_environment_that_cannot_be_made_is_told(workers):
    """In the worker: its constructor runs there."""
    [env] = workers("Moody-v0")
    env._make = b"cnowhere\nnothing\n."  # a class of a module that the worker does not have
    with pytest.raises(EnvironmentRaisedError, match="No module named 'nowhere'"):
        ask(env, "reset", seed=0)


def test_a_worker_that_dies_or_hangs_is_lost_until_it_is_replaced(workers):
    """The other goes on as if nothing had happened."""
    hanging, other = workers("Moody-v0", count=2, timeout=0.5)
    other._timeout = 20.0
    for env in (hanging, other):
        ask(env, "reset", seed=0)
    before = multiprocessing.active_children()
    started = time.perf_counter()
    with pytest.raises(WorkerLostError, match="no answer within data.env_timeout, 0.5 seconds"):
        ask(hanging, "step", 1)
    assert time.perf_counter() - started < 5
    with pytest.raises(WorkerLostError, match="no answer"):
        ask(hanging, "step", 0)
    hanging._timeout = 20.0
    hanging.restart()
    assert ask(hanging, "reset", seed=0) == (0, {})
    [new] = set(multiprocessing.active_children()) - set(before)
    os.kill(new.pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="died"):
        ask(hanging, "step", 0)
    assert ask(other, "step", 0)[0] == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts file handles as Linux shows them")
def test_replacements_leave_nothing_behind(workers):
    """A pipe or a semaphore each would end a long run."""
    [env] = workers("Echo-v0")
    ask(env, "reset", seed=0)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10):
        if number % 2:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        env.restart()
        ask(env, "reset", seed=0)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert len(multiprocessing.active_children()) == 1


def test_a_worker_loads_no_torch(workers):
    """It would cost every worker seconds and hundreds of megabytes. What registers the environment is
    loaded."""
    [env] = workers("Loaded-v0")
    assert ask(env, "reset", seed=0)[1] == {"torch": False}


class LoadedEnv(MoodyEnv):
    """Tells whether its process has torch."""

    def reset(self, *, seed=None, options=None):
        return 0, {"torch": "torch" in sys.modules}


if "Loaded-v0" not in gymnasium.registry:
    gymnasium.register("Loaded-v0", LoadedEnv)


PROGRAM = """
    import os, signal, sys, time
    from functools import partial
    from multiprocessing import active_children
    import gymnasium
    from lgym.envs import make_env
    from lgym.envs.workers import worker_envs

    assert __name__ == "__main__", "a worker has run the program"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background program ignores it

    class SlowEnv(gymnasium.Env):  # of the program itself, which no worker can import
        observation_space = action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return 0, {}
        def step(self, action):
            time.sleep(1)

    gymnasium.register("Slow-v0", SlowEnv)
    envs = worker_envs(partial(make_env, "Slow-v0"), 2, 30.0)
    for env in envs:
        env.send("reset", seed=0)
        env.receive()
    envs[0].send("step", 1)
    print(*(child.pid for child in active_children()), flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_program(how, tmp_path):
    """However it ends, one worker idle and one in the middle of a step. No guard of `__main__` is needed in
    it."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    program = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    pids = [int(pid) for pid in program.stdout.readline().split()]
    assert len(pids) == 2
    program.send_signal(how)
    program.wait(60)
    program.stdout.close()
    until = time.monotonic() + 60
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until, "a worker is still there"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
