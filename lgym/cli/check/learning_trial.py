"""Steps of learning from a small rollout, of sizes that the time allows."""

import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lgym.cli.check.time_budget import TimeBudget
from lgym.data import RolloutDataModule
from lgym.modules import LLMLearner, SFTConfig
from lgym.rollout import Rollout

LEARN_UNTIL = 0.9  # of the time


class Step(NamedTuple):
    """A minibatch's loss, forward and backward: its distinct prompts, or distinct responses, and seconds."""

    size: int
    seconds: float


@dataclass(frozen=True)
class LearningTrial:
    """Steps of learning from a small rollout.

    Attributes:
        steps: of growing size, the first a warm-up.
        by_response: minibatches are counted in distinct responses, else in distinct prompts.
        units: of these, how many the rollout has to learn from.
        prepare_seconds: time that estimating the rollout's advantages took.
        evaluates: that computes every prompt or response, and else a bounded number of them.
        step_bytes: peak memory behind the steps.
        moment_bytes: memory that an optimizer with two moments of every trained parameter will add.
    """

    steps: list[Step]
    by_response: bool
    units: int
    prepare_seconds: float
    evaluates: bool
    step_bytes: int
    moment_bytes: int


def learn_from(
    data: RolloutDataModule, module: LLMLearner, rollout: Rollout, budget: TimeBudget
) -> LearningTrial:
    """Times minibatches of growing size, up to the run's own as long as there is time."""
    started = time.perf_counter()
    batch, _ = module.prepare(rollout)
    prepare_seconds = time.perf_counter() - started
    units = batch.num_units
    # the run has more prompts than the trial, and so larger minibatches where their number is given
    largest = units if data.num_minibatches else min(data.prompts_per_minibatch(units), units)
    order = torch.randperm(len(batch.prompt_chains), generator=torch.Generator().manual_seed(0)).tolist()
    steps: list[Step] = []
    size = 1
    while True:
        minibatch = next(batch.minibatches(size, order)).to(module.device)
        steps.append(Step(minibatch.num_units, _time_step(module, minibatch)))
        rest = largest / size
        growth = 1 if len(steps) == 1 else rest if rest < 8 else 4  # the first size twice: it warms up
        if size == largest and len(steps) > 1:
            break
        if len(steps) > 1 and steps[-1].seconds * growth > budget.until(LEARN_UNTIL):
            break
        size = max(1, int(size * growth))
    return LearningTrial(
        steps=steps,
        by_response=not batch.by_prompt,
        units=units,
        prepare_seconds=prepare_seconds,
        evaluates=module.evaluates_rollout,
        step_bytes=peak_bytes(module.device),
        moment_bytes=2 * sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad),
    )


def _time_step(module: LLMLearner, minibatch: Any) -> float:
    """Seconds of a step of the algorithm's own loss, without turns to imitate."""
    sft, module.sft = module.sft, SFTConfig(rollouts=0)
    module.train()
    started = time.perf_counter()
    try:
        with torch.enable_grad(), module.trainer.precision_plugin.forward_context():
            loss, _ = module.loss(minibatch)
    finally:
        module.sft = sft
    if loss is not None:
        loss.backward()
    if module.device.type != "cpu":
        torch.accelerator.synchronize()
    seconds = time.perf_counter() - started
    module.zero_grad()
    module.eval()
    return seconds


def peak_bytes(device: torch.device) -> int:
    """Peak memory: of the GPU where the model is on one, else of the process; 0 where unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":  # has no `resource`
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
