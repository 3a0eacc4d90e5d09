"""lgym beside another library: the same model and environment on the same machine, in turns, training
included."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from peers import beside_llamagym, beside_trl

PEERS = {"llamagym": beside_llamagym, "trl": beside_trl}
"""Each sets its library up (`set_up`), writes a model as that reads it (`export_model`), and times it
(`rate`)."""


@dataclass
class Comparison:
    """Environment steps (for `letters`, replies) a second, training included, of as many rounds as were asked
    for."""

    peer: str
    task: str
    ours: list[float]
    theirs: list[float]
    at_most: bool = False
    """Whether the peer was stopped before it had learned from all that it did, so that it is slower than
    told."""

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return statistics.median(self.ours) / statistics.median(self.theirs)


def compare(
    peer: str, tasks: Sequence[str], model: str, *, rounds: int, seconds: float, longest: float
) -> list[Comparison]:
    """Times both in turns, so that they meet the same machine.

    Args:
        peer: of `PEERS`.
        tasks: of `bench.TASKS`.
        model: a registry name, folder or Hub id.
        rounds: turns that each of the two takes.
        seconds: least time of one of the peer's turns.
        longest: seconds after which one of them is stopped.
    """
    library = PEERS[peer]
    python = library.set_up()
    results = [Comparison(peer, task, [], []) for task in tasks]
    with tempfile.TemporaryDirectory() as folder:
        library.export_model(model, Path(folder))
        bar = tqdm(total=2 * rounds * len(tasks), desc=f"lgym and {peer}", file=sys.stderr)
        for _ in range(rounds):
            for result in results:
                rate = library.rate(python, Path(folder), result.task, seconds, longest)
                result.theirs.append(rate.per_second)
                result.at_most |= rate.at_most
                bar.update()
                result.ours.append(_our_rate(model, result.task))
                bar.update()
                bar.write(
                    f"{result.task}: {peer} {result.theirs[-1]:.3f}/s, lgym {result.ours[-1]:.3f}/s",
                    file=sys.stderr,
                )
        bar.close()
    return results


def _our_rate(model: str, task: str) -> float:
    bench = Path(__file__).parents[1] / "bench.py"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        command = [
            sys.executable,
            str(bench),
            "--task",
            task,
            "--model",
            model,
            "--repeat",
            "1",
            "--json",
            str(file),
        ]
        subprocess.run(command, check=True, capture_output=True)
        return json.loads(file.read_text())["results"][0]["steps_per_s"]


def table(results: Sequence[Comparison]) -> str:
    lines = [f"{'environment steps/s, training included':<42}{'lgym':>12}{'peer':>12}{'ratio':>10}"]
    for result in results:
        name = f"{result.task}, beside {result.peer}"
        ours, theirs = statistics.median(result.ours), statistics.median(result.theirs)
        below, above = ("< ", "> ") if result.at_most else ("", "")
        lines.append(
            f"{name:<42}{ours:>12,.3f}{f'{below}{theirs:,.3f}':>12}{f'{above}{result.ratio:,.0f}':>10}"
        )
    return "\n".join(lines)
