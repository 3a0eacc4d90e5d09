"""Load on `lgym serve`: requests a second, their latency, and what the server holds meanwhile.

    python scripts/serve_load.py frozen_lake --clients 1 8 64 --seconds 30

starts a server of an agent on a free port, and asks `POST /act` for observations that the environment's space
draws, from each number of clients in turn: threads of this process, each of which asks again as soon as it is
answered. Between them malformed and oversized requests come in; each has to get a status of 4xx, and the
server to answer on. Ends with status 1 where one does not, or where anything else than 200 comes back.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import psutil
import yaml

import lgym.envs  # noqa: F401  (its ids)
from lgym.pretrained import ROOT

START = 120.0
"""Seconds that a server may take until it answers."""

HOSTILE = {
    "no JSON": b"{",
    "no object": b"[1, 2]",
    "no observation": b"{}",
    "an observation of another form": b'{"observation": {"a": "b"}}',
    "too many inputs": json.dumps({"inputs": [{"observation": 0}] * 1000}).encode(),
    "two megabytes": json.dumps({"text": "x" * 2_000_000}).encode(),
}
"""Bodies that cannot be answered."""


class Load(NamedTuple):
    """What was measured with a number of clients; latencies in seconds, memory in bytes."""

    clients: int
    requests_per_s: float
    median: float
    p99: float
    memory: int


@contextmanager
def served(agent: str):
    """A server of an agent: its process and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "lgym.cli", "serve", agent, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START
        while True:
            try:
                ask(port, "GET", "/health")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{' '.join(command)} does not answer.") from None
                time.sleep(0.2)
        yield process, port
    finally:
        process.terminate()
        process.wait()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> int:
    """The status of a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def bodies(agent: str, count: int) -> list[bytes]:
    """Requests for observations that the environment's space draws."""
    config: dict[str, Any] = yaml.safe_load((ROOT / agent / "config.yaml").read_text(encoding="utf-8"))
    env = gymnasium.make(config["data"]["env"], **(config["data"].get("env_kwargs") or {}))
    env.observation_space.seed(0)
    drawn = [env.observation_space.sample() for _ in range(count)]
    env.close()
    return [json.dumps({"observation": np.asarray(observation).tolist()}).encode() for observation in drawn]


def load(
    process: subprocess.Popen, port: int, requests: Sequence[bytes], clients: int, seconds: float
) -> Load:
    """Lets clients ask for some seconds."""
    latencies: list[float] = []
    failed: list[int] = []
    end = time.monotonic() + seconds

    def client(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        number = first
        while time.monotonic() < end:
            begun = time.monotonic()
            connection.request("POST", "/act", requests[number % len(requests)])
            response = connection.getresponse()
            response.read()
            latencies.append(time.monotonic() - begun)
            if response.status != 200:
                failed.append(response.status)
            number += 1
        connection.close()

    threads = [threading.Thread(target=client, args=(number * 7,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed or len(latencies) < clients:
        raise SystemExit(f"{clients} clients: {len(failed)} requests failed, with {sorted(set(failed))}.")
    median, p99 = np.quantile(latencies, [0.5, 0.99])
    memory = psutil.Process(process.pid).memory_info().rss
    return Load(clients, len(latencies) / seconds, float(median), float(p99), memory)


def refused(port: int) -> None:
    """Sends what cannot be answered."""
    for name, body in HOSTILE.items():
        status = ask(port, "POST", "/act", body)
        if not 400 <= status < 500:
            raise SystemExit(f"{name}: status {status} in place of one of 4xx.")


def table(loads: Sequence[Load]) -> str:
    """Loads as Markdown."""
    lines = ["| clients | requests/s | median | 99th percentile | memory |", "|---|---|---|---|---|"]
    lines += [
        f"| {x.clients} | {x.requests_per_s:.0f} | {1000 * x.median:.0f} ms | {1000 * x.p99:.0f} ms | "
        f"{x.memory / 1e6:.0f} MB |"
        for x in loads
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", help="one that comes with lgym")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each number of clients")
    arguments = parser.parse_args(argv)
    requests = bodies(arguments.agent, 1000)
    loads = []
    with served(arguments.agent) as (process, port):
        for clients in arguments.clients:
            loads.append(load(process, port, requests, clients, arguments.seconds))
            refused(port)
        if ask(port, "GET", "/health") != 200:
            raise SystemExit("The server does not answer any more.")
    print(table(loads))


if __name__ == "__main__":
    main()
