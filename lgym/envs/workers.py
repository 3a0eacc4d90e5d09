"""Environments in worker processes, and one interface to an environment wherever it runs."""

import multiprocessing
import pickle
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.vector.utils import clear_mpi_env_vars

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
    except (Exception, SystemExit) as error:  # anybody's code may raise anything, and a closed window exits
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

    Observations, infos and actions pass as they are: packed into arrays and back, as Gymnasium's
    `AsyncVectorEnv` does, lists and texts would change. There is no autoreset.

    Args:
        make: makes the environment; called in the worker.
        name: the environment's id.
        timeout: seconds that a call may take, the first with the making of the environment.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], name: str, timeout: float) -> None:
        self.name = name
        self._make = cloudpickle.dumps(make)
        self._timeout = timeout
        self._process: Any = None
        self._lost: WorkerLostError | None = None
        self._due: float | None = None  # the deadline of the current call; None while there is none

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call one of the environment's methods, such as `step`, without waiting for the result."""
        if self._lost is not None:
            return
        try:
            if self._process is None:
                self._process, self._pipe = _start(self._make)
            self._pipe.send((method, args, kwargs))
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
        assert self._due is not None
        try:
            if not self._pipe.poll(max(0.0, self._due - time.monotonic())):
                self._lost = WorkerLostError(
                    f"{self.name} gave no answer within data.env_timeout, {self._timeout:g} seconds."
                )
                raise self._lost
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self._process.join(CLOSING)
            self._lost = WorkerLostError(
                f"The worker process of {self.name} died with exit code {self._process.exitcode}."
            )
            raise self._lost from None
        self._due = None
        ok, result = pickle.loads(answer)
        if not ok:
            raise EnvironmentRaisedError(*result)
        return result

    def restart(self) -> None:
        """End the process whatever it does; the next call starts a new one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = self._lost = self._due = None

    def close(self) -> None:
        """Let the environment close and end the process; at once, in the middle of a call."""
        if self._process is not None and self._lost is None and self._due is None:
            with suppress(OSError):
                self._pipe.send(None)
            self._process.join(CLOSING)
        self.restart()


def worker_envs(make: Callable[[], gymnasium.Env], count: int, timeout: float) -> list[WorkerEnv]:
    """Environments in processes of their own. One is made here too, to know how it is registered."""
    env = LocalEnv(make())
    env.close()
    spec = gymnasium.registry.get(env.name)
    return [WorkerEnv(partial(_registered, spec, make), env.name, timeout) for _ in range(count)]


def _registered(spec: Any, make: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    if spec is not None:  # nothing in a worker may have imported the module that registers the environment
        gymnasium.registry.setdefault(spec.id, spec)
    return make()


def _start(make: bytes) -> tuple[Any, Connection]:
    """Start a process with one environment, and a pipe to it.

    Where it can, it is forked from a small server that has imported Gymnasium: a fork of this process would
    copy torch in the middle of its threads.
    """
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    if forks:
        multiprocessing.set_forkserver_preload([__name__])
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    pipe, workers_end = context.Pipe()
    process = context.Process(target=_work, args=(workers_end, make), daemon=True)
    main = sys.modules["__main__"]
    # A process imports the main program, which would load torch and all of lgym, seconds and hundreds of
    # megabytes each time.
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        with clear_mpi_env_vars():
            process.start()
    finally:
        sys.modules["__main__"] = main
    workers_end.close()
    return process, pipe


def _work(pipe: Connection, make: bytes) -> None:
    """Answer the calls that come through a pipe, each by a flag of success and the result or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main one ends the others
    env: Any = None
    with suppress(EOFError, ConnectionError):  # the main process is gone
        for method, args, kwargs in iter(pipe.recv, None):
            try:
                if env is None:
                    env = answer_of(lambda: pickle.loads(make)())
                answer = answer_of(partial(_pickled_result, env, method, args, kwargs))
            except EnvironmentRaisedError as error:
                answer = pickle.dumps((False, (error.said, error.trace)))
            pipe.send_bytes(answer)
    if env is not None:
        env.close()


def _pickled_result(env: gymnasium.Env, method: str, args: Any, kwargs: Any) -> bytes:
    """Pickled where errors are caught, so that a result that cannot be pickled is reported as well."""
    return pickle.dumps((True, attrgetter(method)(env)(*args, **kwargs)))
