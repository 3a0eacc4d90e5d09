"""Memory of a full replay buffer, and the size of what a checkpoint has of it.

    python scripts/replay_memory.py

It holds transitions of random play in CartPole: in words, whose prompts come again, and in exact numbers,
whose prompts hardly ever do. Memory is what the process has grown by once it holds nothing else of them.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
from collections.abc import Iterator
from itertools import count

import gymnasium
import numpy as np
import psutil
import torch
from tqdm import tqdm

from lgym.agents import CartPoleAgent, TextAgent
from lgym.data import ReplayBuffer
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.random_play import RandomTurn, random_turns
from lgym.models import load_model_and_tokenizer
from lgym.rollout import Prompt
from lgym.transitions import TransitionBatch
from metering import ExactCartPoleAgent

TRANSITIONS = 100_000
ROLLOUT = 1000
"""Transitions that come at a time."""

AGENTS = {"CartPole in words": CartPoleAgent, "CartPole in exact numbers": ExactCartPoleAgent}


def played(env: gymnasium.Env, agent: TextAgent) -> Iterator[RandomTurn]:
    """Turns of random play, episode after episode."""
    rng = np.random.default_rng(0)
    for seed in count():
        yield from random_turns(env, agent, seed, rng, env.action_space)


def batch_of(turns: list[RandomTurn], builder: PromptBuilder) -> TransitionBatch:
    """Each turn with the prompt behind it, but for the last turn of the game."""
    prompts: dict[Prompt, int] = {}
    index = [prompts.setdefault(builder.prompt(*turn.question), len(prompts)) for turn in turns]
    ended = torch.tensor([turn.terminated or turn.truncated for turn in turns])
    following = torch.tensor([*index[1:], -1]).where(~ended, -1)
    return TransitionBatch(
        prompts=tuple(prompts),
        prompt_index=torch.tensor(index),
        choices=torch.tensor([turn.question[1].index(turn.answer) for turn in turns]),
        rewards=torch.tensor([turn.reward for turn in turns]),
        next_prompt_index=following,
        discounts=torch.full((len(turns),), 0.99).where(following >= 0, 0.0),
        next_values=torch.zeros(len(turns)),
    )


def filled(agent: TextAgent, name: str) -> tuple[int, float, float]:
    """Distinct prompts, MB of memory, and MB in a checkpoint of a full buffer."""
    model, tokenizer = load_model_and_tokenizer(name)  # the model stays, so that its memory is not used again
    env = gymnasium.make("CartPole-v1")
    buffer = ReplayBuffer(capacity=TRANSITIONS)
    turns = played(env, agent)
    process = psutil.Process()
    PromptBuilder(tokenizer, agent.system_prompt, 8192).prompt(*next(turns).question)  # loads what is lazy
    before = process.memory_info().rss
    for _ in range(TRANSITIONS // ROLLOUT):
        builder = PromptBuilder(tokenizer, agent.system_prompt, 8192)  # which keeps prompts too
        buffer.add(batch_of([next(turns) for _ in range(ROLLOUT)], builder))
    del builder
    gc.collect()
    memory = process.memory_info().rss - before
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    return buffer.num_prompts, memory / 1e6, file.tell() / 1e6


def main() -> None:
    print(f"{TRANSITIONS:,} transitions of | distinct prompts | MB of memory | MB in a checkpoint")
    for name, agent in tqdm(AGENTS.items(), disable=None):
        with multiprocessing.get_context("spawn").Pool(1) as alone:  # whose memory is its own
            prompts, memory, saved = alone.apply(filled, (agent(), "smollm2-135m-instruct"))
        print(f"{name} | {prompts:,} | {memory:.0f} | {saved:.0f}")


if __name__ == "__main__":
    main()
