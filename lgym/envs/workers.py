"""Environments in processes of their own, and how one is asked wherever it runs."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from lgym.types import LgymError

CLOSING = 5.0
"""Seconds that an environment in a worker has to close."""


class BrokenEnvironmentError(LgymError, RuntimeError):
    """An environment raised an exception, or lost one worker after the other; the message says where it stood."""


class WorkerLostError(BrokenEnvironmentError):
    """A worker process died, or did not answer in time."""


class EnvironmentRaisedError(Exception):
    """What an environment raised, here or in its worker, with the traceback from there."""

    def __init__(self, said: str, trace: str) -> None:
        super().__init__(f"\n{trace}")
        self.said, self.trace = said, trace


def answer_of(work: Callable[[], Any]) -> Any:
    """What a call into an environment returns. Raises `EnvironmentRaisedError` for whatever it raises: an environment is
    anybody's code, and which one it was and where it stood has to be told of every mistake in it."""
    try:
        return work()
    except Exception as error:  # what anybody's code may raise; a narrower list would let the rest pass unnamed
        said = "".join(traceback.format_exception_only(error)).strip()
        raise EnvironmentRaisedError(said, traceback.format_exc()) from error


class LocalEnv:
    """An environment of this process: what it is asked, it answers at once."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env = env
        self.name = env.spec.id if env.spec else type(env.unwrapped).__name__

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Asks for the answer of one of the environment's methods, such as `step`; `receive` gives it."""
        self._work = partial(attrgetter(method)(self.env), *args, **kwargs)

    def receive(self) -> Any:
        """The answer to what was asked last. Raises `EnvironmentRaisedError`."""
        return answer_of(self._work)

    def close(self) -> None:
        self.env.close()


class WorkerEnv:
    """An environment in a process of its own, which is started when something is first asked.

    Gymnasium's `AsyncVectorEnv` of one environment keeps the process, so each can be replaced by itself. It is asked by
    `call`, which hands observations, infos and actions over as they are: packed into arrays and back, lists and texts
    would not be what they were. There is no autoreset.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], name: str, timeout: float) -> None:
        """
        Args:
            make: makes the environment; called in the worker.
            name: the environment's id.
            timeout: seconds that an answer may take, the first with the making of the environment.
        """
        self.name = name
        self._make = cloudpickle.dumps(make)
        self._timeout = timeout
        self._vector: AsyncVectorEnv | None = None
        self._lost: WorkerLostError | None = None
        self._due: float | None = None  # when the answer must be there; None while nothing is asked

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Asks for the answer of one of the environment's methods, such as `step`; returns before it is there."""
        if self._lost is not None:
            return
        try:
            if self._vector is None:
                self._vector = _start(self._make)
            self._vector.call_async("ask", method, args, kwargs)
        except (EOFError, ConnectionError):
            self._lost = WorkerLostError(f"The worker process of {self.name} died.")
        self._due = time.monotonic() + self._timeout

    def receive(self) -> Any:
        """Waits for the answer to what was asked last.

        Raises:
            EnvironmentRaisedError: for whatever the environment raised.
            WorkerLostError: if the process died or the time is up; from then on, until `restart`.
        """
        if self._lost is not None:
            raise self._lost
        assert self._vector is not None
        assert self._due is not None
        try:
            [(ok, answer)] = self._vector.call_wait(max(0.0, self._due - time.monotonic()))
        except multiprocessing.TimeoutError:
            self._lost = WorkerLostError(
                f"{self.name} gave no answer within data.worker_timeout, {self._timeout:g} seconds."
            )
        except (EOFError, OSError):
            process = self._vector.processes[0]
            process.join(CLOSING)
            self._lost = WorkerLostError(f"The worker process of {self.name} died with exit code {process.exitcode}.")
        if self._lost is not None:
            raise self._lost from None
        self._due = None
        if not ok:
            raise EnvironmentRaisedError(*pickle.loads(answer))
        return pickle.loads(answer)

    def restart(self) -> None:
        """Has a new process made for what is asked next; the old one is ended whatever it does."""
        if self._vector is not None:
            _end(self._vector)
        self._vector = self._lost = self._due = None

    def close(self) -> None:
        """Lets the environment close and ends the process; at once, if it owes an answer."""
        if self._vector is not None and self._lost is None and self._due is None:
            killer = threading.Timer(CLOSING, self._vector.processes[0].kill)
            killer.start()
            with suppress(EOFError, OSError):
                self._vector.close()
            killer.cancel()
        self.restart()


def worker_envs(make: Callable[[], gymnasium.Env], count: int, timeout: float) -> list[WorkerEnv]:
    """So many environments in processes of their own. One is made here too, to know how it is registered."""
    env = make()
    env.close()
    spec = gymnasium.registry.get(env.spec.id) if env.spec else None
    name = spec.id if spec else type(env.unwrapped).__name__
    return [WorkerEnv(partial(_registered, spec, make), name, timeout) for _ in range(count)]


def _registered(spec: Any, make: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    """In a worker nothing may have imported what registers the environment, such as the agent's module."""
    if spec is not None:
        gymnasium.registry.setdefault(spec.id, spec)
    return make()


class _Worker(gymnasium.Env):
    """What a worker process holds: the environment, made when it is first asked for something."""

    observation_space = action_space = gymnasium.spaces.Discrete(1)  # AsyncVectorEnv compares them, and no more

    def __init__(self, make: bytes) -> None:
        self._make = make
        self._env: gymnasium.Env | None = None

    def ask(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, bytes]:
        """Whether the environment answered, and the answer, or what it raised with the traceback; pickled here, so that
        what cannot be pickled is told as well."""
        try:
            return True, answer_of(lambda: pickle.dumps(attrgetter(method)(self._made())(*args, **kwargs)))
        except EnvironmentRaisedError as error:
            return False, pickle.dumps((error.said, error.trace))

    def _made(self) -> gymnasium.Env:
        if self._env is None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
            self._env = pickle.loads(self._make)()
        return self._env

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


def _start(make: bytes) -> AsyncVectorEnv:
    """A process that holds one environment. Where it can, it is forked from a small server that has imported Gymnasium:
    a fork of this process would copy torch in the middle of its threads."""
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    if forks:
        multiprocessing.set_forkserver_preload([__name__])
    with _without_main():
        return AsyncVectorEnv(
            [partial(_Worker, make)],
            shared_memory=False,
            context="forkserver" if forks else "spawn",
            autoreset_mode=AutoresetMode.DISABLED,
        )


@contextmanager
def _without_main() -> Iterator[None]:
    """Within, a new process does not import the program that was started: it would load torch and all of lgym, seconds and
    hundreds of megabytes each time."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _end(vector: AsyncVectorEnv) -> None:
    """Kills the process and closes what leads to it."""
    for process in vector.processes:
        process.kill()
        process.join()
    for pipe in vector.parent_pipes:
        pipe.close()
    vector.error_queue.close()
    vector.closed = True
