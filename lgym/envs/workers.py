"""Environments in worker processes, and one interface to an environment wherever it runs."""

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

CLOSING = 5.0  # seconds that an environment in a worker has to close


class BrokenEnvironmentError(LgymError, RuntimeError):
    """An environment raised an exception, or lost one worker after the other; the message says where it
    stood."""


class WorkerLostError(BrokenEnvironmentError):
    """A worker process died, or did not answer in time."""


class EnvironmentRaisedError(Exception):
    """An exception of an environment, here or in its worker, with the traceback from there."""

    def __init__(self, said: str, trace: str) -> None:
        super().__init__(f"\n{trace}")
        self.said = said
        self.trace = trace


def answer_of(work: Callable[[], Any]) -> Any:
    """The result of a call into an environment.

    Raises:
        EnvironmentRaisedError: for whatever it raises: an environment is anybody's code, and every mistake in
            it has to be reported with the environment and its state.
    """
    try:
        return work()
    except Exception as error:  # anybody's code may raise anything; the rest would pass unnamed
        said = "".join(traceback.format_exception_only(error)).strip()
        raise EnvironmentRaisedError(said, traceback.format_exc()) from error


class LocalEnv:
    """An environment of this process."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env = env
        self.name = env.spec.id if env.spec else type(env.unwrapped).__name__

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call one of the environment's methods, such as `step`; `receive` returns its result."""
        self._work = partial(attrgetter(method)(self.env), *args, **kwargs)

    def receive(self) -> Any:
        """The result of the last call. Raises `EnvironmentRaisedError`."""
        return answer_of(self._work)

    def close(self) -> None:
        self.env.close()


class WorkerEnv:
    """An environment in a process of its own, which is started at the first call.

    Gymnasium's `AsyncVectorEnv` of one environment keeps the process, so each can be replaced by itself. Its
    `call` passes observations, infos and actions as they are: packed into arrays and back, lists and texts
    would change. There is no autoreset.

    Args:
        make: makes the environment; called in the worker.
        name: the environment's id.
        timeout: seconds that a call may take, the first with the making of the environment.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], name: str, timeout: float) -> None:
        self.name = name
        self._make = cloudpickle.dumps(make)
        self._timeout = timeout
        self._vector: AsyncVectorEnv | None = None
        self._lost: WorkerLostError | None = None
        self._due: float | None = None  # the deadline of the current call; None while there is none

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call one of the environment's methods, such as `step`, without waiting for the result."""
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
        """Wait for the result of the last call.

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
                f"{self.name} gave no answer within data.env_timeout, {self._timeout:g} seconds."
            )
        except (EOFError, OSError):
            process = self._vector.processes[0]
            process.join(CLOSING)
            self._lost = WorkerLostError(
                f"The worker process of {self.name} died with exit code {process.exitcode}."
            )
        if self._lost is not None:
            raise self._lost from None
        self._due = None
        if not ok:
            raise EnvironmentRaisedError(*pickle.loads(answer))
        return pickle.loads(answer)

    def restart(self) -> None:
        """End the process whatever it does; the next call starts a new one."""
        if self._vector is not None:
            for process in self._vector.processes:
                process.kill()
                process.join()
            for pipe in self._vector.parent_pipes:
                pipe.close()
            self._vector.error_queue.close()
            self._vector.closed = True
        self._vector = self._lost = self._due = None

    def close(self) -> None:
        """Let the environment close and end the process; at once, in the middle of a call."""
        if self._vector is not None and self._lost is None and self._due is None:
            killer = threading.Timer(CLOSING, self._vector.processes[0].kill)
            killer.start()
            with suppress(EOFError, OSError):
                self._vector.close()
            killer.cancel()
        self.restart()


def worker_envs(make: Callable[[], gymnasium.Env], count: int, timeout: float) -> list[WorkerEnv]:
    """Environments in processes of their own. One is made here too, to know how it is registered."""
    env = make()
    env.close()
    spec = gymnasium.registry.get(env.spec.id) if env.spec else None
    name = spec.id if spec else type(env.unwrapped).__name__
    return [WorkerEnv(partial(_registered, spec, make), name, timeout) for _ in range(count)]


def _registered(spec: Any, make: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    if spec is not None:  # nothing in a worker may have imported the module that registers the environment
        gymnasium.registry.setdefault(spec.id, spec)
    return make()


class _Worker(gymnasium.Env):
    # AsyncVectorEnv compares the spaces, and no more.
    observation_space = action_space = gymnasium.spaces.Discrete(1)

    def __init__(self, make: bytes) -> None:
        self._make = make
        self._env: gymnasium.Env | None = None

    def ask(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, bytes]:
        """A flag of success, and the result or the exception with its traceback.

        Pickled here, so that a result that cannot be pickled is reported as well.
        """
        try:
            return True, answer_of(
                lambda: pickle.dumps(attrgetter(method)(self._made_env())(*args, **kwargs))
            )
        except EnvironmentRaisedError as error:
            return False, pickle.dumps((error.said, error.trace))

    def _made_env(self) -> gymnasium.Env:
        if self._env is None:
            # Ctrl-C reaches all processes; the main one ends the others.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._env = pickle.loads(self._make)()
        return self._env

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


def _start(make: bytes) -> AsyncVectorEnv:
    """Start a process with one environment.

    Where it can, it is forked from a small server that has imported Gymnasium: a fork of this process would
    copy torch in the middle of its threads.
    """
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
    """Context manager in which a new process does not import the main program.

    It would load torch and all of lgym, seconds and hundreds of megabytes each time.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
