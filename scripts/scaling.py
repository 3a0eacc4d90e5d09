"""How the cost grows: with candidates, environments, turns of history and the size of a rollout. One picture
each.

    python scripts/scaling.py docs                 # writes docs/scaling-*.png and docs/scaling.json

Each point is the median of several tries of a forward and backward pass (or of playing), against the same
work without anything shared where that is feasible; the grey line is what the cost should grow like.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from tqdm import tqdm

from lgym.agents import BlackjackAgent, CartPoleAgent, TextAgent
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.rollout.collector import Collector
from lgym.data.rollout.env_runner import EnvRunner
from lgym.envs import make_env
from lgym.models import LLMConfig, LoraSettings, build_llm
from lgym.models.llm import ValueHeadLLM
from lgym.policies import CandidatePolicy
from lgym.rollout import Prompt

Curve = dict[int, float]
FRUIT = (
    "apple",
    "bread",
    "stone",
    "river",
    "house",
    "green",
    "table",
    "light",
    "paper",
    "water",
    "glass",
    "horse",
)


def seconds(work: Callable[[], object], tries: int) -> float:
    work()
    times = []
    for _ in range(tries):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


class Scaling:
    """The measurements, on one model."""

    def __init__(self, llm: ValueHeadLLM, tries: int) -> None:
        self.llm, self.tries = llm, tries
        self.policy = CandidatePolicy()
        self.policy.bind(llm)
        self.bar = tqdm(desc="points", unit="point")

    def update(self, prompts: Sequence[Prompt]) -> float:
        """Seconds of a forward and backward pass over these prompts."""

        def work() -> None:
            logprobs, values = self.policy(prompts)
            (logprobs[:, 0].sum() + values.sum()).backward()
            self.llm.zero_grad()

        self.bar.update()
        return seconds(work, self.tries)

    def plain(self, prompts: Sequence[Prompt]) -> float:
        """The same with nothing shared."""
        self.llm.share_prefixes = False
        spent = self.update(prompts)
        self.llm.share_prefixes = True
        return spent

    def candidates(self, counts: Sequence[int]) -> dict[str, Curve]:
        """32 prompts, each with so many candidates of one token, or of four."""
        rng = np.random.default_rng(0)
        encode = self.llm.tokenizer.encode
        prompts = [tuple(encode(f"You see a box with the number {i}. You take the")) for i in range(32)]
        vocabulary = self.llm.causal_lm.get_input_embeddings().num_embeddings
        words = rng.integers(3, vocabulary, size=(max(counts), 4))
        words[:, 0] = rng.choice(
            np.arange(3, vocabulary), size=max(counts), replace=False
        )  # nothing shared between them

        def prompts_of(count: int, length: int) -> list[Prompt]:
            ids = tuple(tuple(int(t) for t in word[:length]) for word in words[:count])
            return [Prompt(prompt, ids, tuple(map(str, range(count))), "") for prompt in prompts]

        return {
            "one token each": {n: self.update(prompts_of(n, 1)) for n in counts},
            "four tokens each": {n: self.update(prompts_of(n, 4)) for n in counts},
            "four tokens each, nothing shared": {n: self.plain(prompts_of(n, 4)) for n in counts if n <= 16},
        }

    def history(self, turns: Sequence[int]) -> dict[str, Curve]:
        """An episode of so many turns, each asked with everything before it."""

        def prompts_of(count: int) -> list[Prompt]:
            ids: tuple[int, ...] = ()
            asked = []
            for turn in range(count):
                word = FRUIT[turn % len(FRUIT)]
                ids += tuple(self.llm.tokenizer.encode(f"\nYou see: {word} and {turn}.\nYou take:"))
                asked.append(Prompt(ids, ((50,), (60,)), ("a", "b"), ""))
                ids += (50,)
            return asked

        return {
            "one row an episode": {n: self.update(prompts_of(n)) for n in turns},
            "one row a turn": {n: self.plain(prompts_of(n)) for n in turns if n <= 16},
        }

    def environments(self, counts: Sequence[int]) -> dict[str, Curve]:
        """16 steps in each of so many CartPoles."""
        return {"CartPole": {n: self._play("CartPole-v1", CartPoleAgent(), n, turns=16 * n) for n in counts}}

    def rollouts(self, sizes: Sequence[int]) -> dict[str, Curve]:
        """So many hands of Blackjack."""
        return {
            "Blackjack": {
                n: self._play("Blackjack-v1", BlackjackAgent(), min(n, 1024), episodes=n) for n in sizes
            }
        }

    def _play(
        self, env: str, agent: TextAgent, count: int, turns: int | None = None, episodes: int | None = None
    ) -> float:
        builder = PromptBuilder(self.llm.tokenizer, agent.system_prompt, self.llm.context_length)
        runners = [EnvRunner(make_env(env, None, None), EpisodePrompts(agent, builder)) for _ in range(count)]
        collector = Collector(runners, first_seed=0)

        def work() -> None:
            with torch.no_grad(), self.llm.frozen_weights():
                collector.play(self.policy, np.random.default_rng(0), turns=turns, episodes=episodes)

        self.bar.update()
        return seconds(work, self.tries)


def draw(curves: dict[str, Curve], title: str, axis: str, expected: str, slope: float, file: Path) -> None:
    """Seconds against the number, both logarithmic; the grey line has the expected slope."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for label, curve in curves.items():
        axes.plot(list(curve), list(curve.values()), "o-", label=label)
    first = next(iter(curves.values()))
    numbers = np.array(list(first), dtype=float)
    last = first[int(numbers[-1])]
    axes.plot(numbers, last * (numbers / numbers[-1]) ** slope, color="grey", linewidth=0.8, label=expected)
    axes.set(xscale="log", yscale="log", xlabel=axis, ylabel="seconds", title=title)
    axes.set_xticks(numbers, [f"{n:.0f}" for n in numbers])
    axes.xaxis.set_minor_formatter(NullFormatter())  # their labels would lie over the numbers
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--precision", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--largest", type=int, default=1 << 30, help="leave larger numbers out")
    options = parser.parse_args(arguments)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    llm = build_llm(
        LLMConfig(model=options.model, lora=LoraSettings(last_blocks=None)),
        dtype=getattr(torch, options.precision),
        device=device,
    ).to(device)
    scaling = Scaling(llm, options.tries)

    def upto(*numbers: int) -> list[int]:
        return [number for number in numbers if number <= options.largest]

    figures = {
        "candidates": scaling.candidates(upto(2, 4, 8, 16, 32, 42, 64)),
        "history": scaling.history(upto(1, 2, 4, 8, 16, 32, 64)),
        "environments": scaling.environments(upto(1, 4, 16, 64, 256)),
        "rollout": scaling.rollouts(upto(250, 1000, 4000, 16000, 64000)),
    }
    scaling.bar.close()
    words = {
        "candidates": ("Forward and backward, 32 prompts", "candidates", "no growth", 0.0),
        "history": ("Forward and backward, one episode", "turns", "linear", 1.0),
        "environments": ("Playing 16 steps", "environments", "linear", 1.0),
        "rollout": ("Playing, 280 distinct prompts at most", "hands", "linear", 1.0),
    }
    for name, curves in figures.items():
        title, axis, expected, slope = words[name]
        draw(curves, title, axis, expected, slope, options.folder / f"scaling-{name}.png")
    (options.folder / "scaling.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
