"""The benchmark on the tiny model: its accounts must add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench
import peers
from metering import Work
from peers.rate import Rate
from roofline import Rates, between


@pytest.mark.parametrize(("task", "quantization"), [("blackjack", "int8"), ("letters", None)])
def test_accounts_add_up(tmp_path, model_folder, monkeypatch, capsys, task, quantization):
    """Distinct tokens can be no more than all tokens, phases no faster than the whole."""
    monkeypatch.setattr(bench, "SHAPES", {"cpu": ((2, 8),)})
    monkeypatch.setitem(bench.TASKS["blackjack"], "num_envs", 8)
    monkeypatch.setitem(bench.TASKS["blackjack"], "episodes_per_rollout", 64)
    arguments = [
        "--task",
        task,
        "--model",
        str(model_folder),
        "--precision",
        "32-true",
        "--accelerator",
        "cpu",
        *(() if quantization is None else ("--quantization", quantization)),
    ]
    bench.main(
        [
            *arguments,
            "--repeat",
            "2",
            "--json",
            str(tmp_path / "b.json"),
            "--profile",
            str(tmp_path / "trace.json"),
        ]
    )
    report = json.loads((tmp_path / "b.json").read_text())
    assert report["precision"] == ("32-true" if quantization is None else "32-true, int8")
    (result,) = report["results"]
    for name in ("playing", "updating"):
        phase = result[name]
        assert 0 < phase["distinct_tokens_per_s"] < phase["all_tokens_per_s"]
        assert phase["steps_per_s"] > result["steps_per_s"]
        assert 0 <= phase["padding"] < 1
        assert phase["bare_tokens_per_s"] > 0
    assert 0 < result["playing"]["in_the_model"] < 1
    assert result["unique_prompts"] == 8 if task == "letters" else 50 < result["unique_prompts"] <= 280
    assert task in capsys.readouterr().out
    assert json.loads((tmp_path / f"trace-{task}.json").read_text())["traceEvents"]


def test_a_share_is_of_the_rates_around_it():
    """The machine slows down by half, rollout by rollout, and so does the work: the share stays."""
    rates = [Rates(800.0, 80.0), Rates(400.0, 40.0), Rates(200.0, 20.0), Rates(100.0, 10.0)]
    around = [rate.forward for rate in between(rates)]
    assert around == [600.0, 300.0, 150.0]
    works = [Work(seconds=2.0, steps=1, distinct_tokens=tokens, places=tokens) for tokens in (900, 450, 225)]
    assert bench._phase(works, around).of_roofline == 0.75
    with pytest.raises(ValueError, match="argument"):
        bench._phase(works, around[1:])


class Snail:
    """A peer of 4, 2 and 3 steps a second, where it is stopped before the third is learned from."""

    def __init__(self, longest: float) -> None:
        self.rates = iter((Rate(4.0), Rate(2.0), Rate(3.0, at_most=longest < 100)))

    @staticmethod
    def set_up():
        return Path("python")

    @staticmethod
    def export_model(name, folder):
        (folder / "model").write_text(name)

    def rate(self, python, folder, task, seconds, longest):
        assert (folder / "model").read_text() == "tiny"
        return next(self.rates)


@pytest.mark.parametrize(
    ("longest", "told"), [(100, "       3.000       200\n"), (99, "     < 3.000     > 200\n")]
)
def test_a_peer_is_timed_in_turns(monkeypatch, tmp_path, capsys, longest, told):
    """The ratio is that of the medians: 600 by 3."""
    ours = iter((500.0, 700.0, 600.0))
    monkeypatch.setitem(peers.PEERS, "snail", Snail(longest))
    monkeypatch.setattr(peers, "_our_rate", lambda model, task: next(ours))
    arguments = [
        "--peer",
        "snail",
        "--task",
        "blackjack",
        "--model",
        "tiny",
        "--repeat",
        "3",
        f"--peer-longest={longest}",
    ]
    bench.main([*arguments, "--json", str(tmp_path / "p.json")])
    assert capsys.readouterr().out.endswith(told)
    (result,) = json.loads((tmp_path / "p.json").read_text())
    assert result["theirs"] == [4.0, 2.0, 3.0]
