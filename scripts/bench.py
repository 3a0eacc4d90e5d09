"""How fast lgym plays and learns on this machine, beside what the bare model can do.

    python scripts/bench.py                                    # every task
    python scripts/bench.py --task blackjack --json bench.json --profile trace.json
    python scripts/bench.py --task blackjack --last-blocks 10  # frozen blocks once a run
    python scripts/bench.py --peer llamagym --task blackjack cartpole-exact    # in turns with another library
    python scripts/bench.py --peer trl --task letters

Everything is measured in one run. The roofline is the bare model as transformers has it, without adapters,
head or sharing, at the best of a few shapes: forward, and forward + backward. It is measured before and after
every rollout, since a machine's speed drifts. A task is a whole `Trainer.fit`: environments, text, sampling,
loss, gradients and optimizer included. Rates are medians over rollouts; the first rollout warms up and is not
counted.

    steps/s        environment steps by the time of playing, of updating, or of both
    distinct t/s   tokens that the model really computed, by the same time
    all t/s        tokens that it would have computed, each turn with all its candidates by itself
    bare t/s       the roofline around that rollout: of playing forward, of updating forward + backward
    roofline       distinct t/s by bare t/s
    in the model   the share of playing that is spent in the model
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import resource
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch
from tqdm import tqdm

from lgym.data import RolloutDataModule
from lgym.models import LLMConfig, LoraSettings, build_llm
from lgym.models.llm import ValueHeadLLM
from metering import TASKS, MeteredPPO, Work
from peers import PEERS, compare
from peers import table as peer_table
from roofline import Rates, Roofline, between

SHAPES = {
    "cpu": ((8, 64), (16, 64), (32, 64), (64, 32), (8, 128)),
    "cuda": ((32, 128), (64, 128), (128, 128), (256, 64), (32, 512)),
}
"""Rows and tokens that the roofline of a device is looked for at."""


@dataclass
class Phase:
    """Medians over the rollouts of a task."""

    steps_per_s: float
    distinct_tokens_per_s: float
    all_tokens_per_s: float
    bare_tokens_per_s: float
    of_roofline: float
    in_the_model: float
    padding: float


@dataclass
class Result:
    """One task."""

    task: str
    playing: Phase
    updating: Phase
    steps_per_s: float
    unique_prompts: float
    peak_memory_mb: float


@dataclass
class Report:
    """All of a run, as it goes into the JSON."""

    machine: str
    model: str
    precision: str
    threads: int
    results: list[Result] = field(default_factory=list)


def measure(
    task: str,
    precision: str,
    llm: ValueHeadLLM,
    bare: Roofline,
    *,
    repeat: int,
    accelerator: str,
    profile: Path | None,
) -> Result:
    """Plays and learns `repeat` rollouts after a first one."""
    options = dict(TASKS[task])
    make_module = options.pop("module", MeteredPPO)
    options = {"update_epochs": 2, "log_episodes_per_rollout": 0, **options}
    data = RolloutDataModule(agent=options.pop("agent")(), **options)
    profiler = None
    if profile is not None:
        schedule = torch.profiler.schedule(wait=1, warmup=0, active=1)
        profiler = torch.profiler.profile(schedule=schedule)
    rates: list[Rates] = []

    def after_rollout() -> None:
        rates.append(bare.rates())
        if profiler is not None:
            profiler.step()

    module = make_module(llm, after_rollout)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            default_root_dir=folder,
            accelerator=accelerator,
            devices=1,
            precision=precision,  # type: ignore[arg-type]
            max_epochs=repeat + 1,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        if profiler is None:
            trainer.fit(module, data)
        else:
            with profiler:
                trainer.fit(module, data)
            profiler.export_chrome_trace(str(profile))
    counted = module.meter.rollouts[1:]
    playing, updating, contexts = zip(*counted, strict=True)
    overall = [work.steps / (work.seconds + update.seconds) for work, update, _ in counted]
    around = between(rates)
    return Result(
        task=task,
        playing=_phase(playing, [rate.forward for rate in around]),
        updating=_phase(updating, [rate.forward_backward for rate in around]),
        steps_per_s=statistics.median(overall),
        unique_prompts=statistics.median(contexts),
        peak_memory_mb=_peak_memory_mb(llm.device),
    )


def _phase(works: Sequence[Work], bare: Sequence[float]) -> Phase:
    def median(value: Callable[[Work], float]) -> float:
        return statistics.median(value(work) for work in works)

    shares = [work.distinct_tokens / work.seconds / rate for work, rate in zip(works, bare, strict=True)]
    return Phase(
        steps_per_s=median(lambda work: work.steps / work.seconds),
        distinct_tokens_per_s=median(lambda work: work.distinct_tokens / work.seconds),
        all_tokens_per_s=median(lambda work: work.all_tokens / work.seconds),
        bare_tokens_per_s=statistics.median(bare),
        of_roofline=statistics.median(shares),
        in_the_model=median(lambda work: work.model_seconds / work.seconds),
        padding=median(lambda work: 1 - work.distinct_tokens / work.places),
    )


def _peak_memory_mb(device: torch.device) -> float:
    """Of the process so far; on CUDA, of the device."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    )


def table(report: Report) -> str:
    lines = [
        f"{report.model}, {report.precision}, {report.machine}, {report.threads} threads",
        "",
        f"{'task':<16}{'phase':<10}{'steps/s':>10}{'distinct t/s':>14}{'all t/s':>13}{'bare t/s':>10}"
        f"{'roofline':>10}{'in the model':>14}{'padding':>9}",
    ]
    for result in report.results:
        for name, phase in (("playing", result.playing), ("updating", result.updating)):
            lines.append(
                f"{result.task:<16}{name:<10}{phase.steps_per_s:>10,.1f}{phase.distinct_tokens_per_s:>14,.0f}"
                f"{phase.all_tokens_per_s:>13,.0f}{phase.bare_tokens_per_s:>10,.0f}{phase.of_roofline:>10.0%}"
                f"{phase.in_the_model:>14.0%}{phase.padding:>9.1%}"
            )
        lines.append(
            f"{'':<16}{'both':<10}{result.steps_per_s:>10,.1f}   {result.unique_prompts:,.0f} distinct "
            f"prompts a rollout, peak memory {result.peak_memory_mb:,.0f} MB"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a registry name, folder or Hub id")
    parser.add_argument("--precision", default="bf16-true", help="as trainer.precision")
    parser.add_argument("--accelerator", default="auto", help="as trainer.accelerator")
    parser.add_argument(
        "--repeat", type=int, default=3, help="rollouts that are counted, and tries of the roofline"
    )
    parser.add_argument(
        "--last-blocks", type=int, help="adapters in so many of the last blocks; by default in all"
    )
    parser.add_argument(
        "--hidden-cache-mb", type=int, default=256, help="to keep what comes out of the blocks below them"
    )
    parser.add_argument(
        "--quantization", choices=["int8", "8bit", "4bit"], help="as model.init_args.llm.quantization"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument(
        "--profile", type=Path, help="write a trace of each task's second rollout, for chrome://tracing"
    )
    parser.add_argument(
        "--peer", choices=PEERS, help="only time this library and lgym, in turns, `repeat` times"
    )
    parser.add_argument(
        "--peer-seconds", type=float, default=60, help="least time of one of the peer's turns"
    )
    parser.add_argument(
        "--peer-longest", type=float, default=1800, help="seconds after which such a turn is stopped"
    )
    options = parser.parse_args(arguments)
    if options.repeat < 1:
        parser.error(f"--repeat is {options.repeat}; it must be 1 or more")
    if options.peer is not None:
        least, longest = options.peer_seconds, options.peer_longest
        results = compare(
            options.peer, options.task, options.model, rounds=options.repeat, seconds=least, longest=longest
        )
        print(peer_table(results))
        _write(options.json, [asdict(result) for result in results])
        return
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    accelerator = L.Trainer(
        accelerator=options.accelerator, devices=1, logger=False, enable_checkpointing=False
    )
    device = accelerator.strategy.root_device
    dtype = torch.bfloat16 if options.precision == "bf16-true" else torch.float32
    steps = tqdm(total=len(options.task) + 1, desc="roofline", file=sys.stderr)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    machine = f"{platform.machine()} {name}"
    bare = Roofline(
        options.model, dtype, device, shapes=SHAPES.get(device.type, SHAPES["cpu"]), repeat=options.repeat
    )
    precision = ", ".join(filter(None, (options.precision, options.quantization)))
    report = Report(machine, options.model, precision, torch.get_num_threads())
    config = LLMConfig(
        model=options.model,
        lora=LoraSettings(last_blocks=options.last_blocks),
        hidden_cache_mb=options.hidden_cache_mb,
        quantization=options.quantization,
    )
    llm = build_llm(config, dtype=dtype, device=device).to(device)
    for task in options.task:
        steps.update()
        steps.set_description(task)
        trace = options.profile.with_stem(f"{options.profile.stem}-{task}") if options.profile else None
        report.results.append(
            measure(
                task,
                options.precision,
                llm,
                bare,
                repeat=options.repeat,
                accelerator=options.accelerator,
                profile=trace,
            )
        )
    steps.update()
    steps.close()
    print(table(report))
    _write(options.json, asdict(report))


def _write(file: Path | None, content: Any) -> None:
    if file is not None:
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
