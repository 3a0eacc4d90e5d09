"""Environments that follow a script, workers that die by one, and policies that need no model."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from helpers import tiny
from lgym.agents import TextAgent
from lgym.batch import Reply
from lgym.envs.workers import LocalEnv, WorkerEnv, WorkerLostError

TOKENIZER = tiny.tokenizer()


class ScriptedEnv(gymnasium.Env):
    """Length, rewards and end of an episode come from its seed and the script's, what it shows from the actions too."""

    observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(3)

    def __init__(self, script: int, longest: int) -> None:
        self.script, self.longest = script, longest

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rng = np.random.default_rng([self.script, seed])
        self.left = int(self.rng.integers(1, self.longest + 1))
        self.truncates, self.path = bool(self.rng.random() < 0.4), 0
        return int(self.rng.integers(9)), {}

    def step(self, action):
        self.left, self.path = self.left - 1, 3 * self.path + int(action)
        reward = float(self.rng.choice([0.0, 1.0, -0.5, self.path % 5]))
        ended = self.left == 0
        return (self.path + self.left) % 9, reward, ended and not self.truncates, ended and self.truncates, {}


class Numbered(TextAgent):
    """Offers two or three of its actions, depending on what it sees."""

    system_prompt = "Choose."
    actions = ("one", "two", "three")

    def format_observation(self, observation):
        return f"At {observation}"

    def candidates(self, observation, info):
        return self.actions[: 2 + observation % 2]


class DyingEnv(WorkerEnv):
    """As if in a worker that dies at certain steps of the episodes of certain seeds, once for each."""

    def __init__(self, env: gymnasium.Env, deaths: dict[int, list[int]]) -> None:
        self.name, self.inside, self.deaths = "Scripted", LocalEnv(env), deaths
        self.lost, self.seed, self.steps = False, 0, 0

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        if method == "reset":
            self.seed, self.steps = kwargs["seed"], 0
        due = self.deaths.get(self.seed, [])
        if self.steps in due:
            due.remove(self.steps)
            self.lost = True
        self.steps += 1
        if not self.lost:
            self.inside.send(method, *args, **kwargs)

    def receive(self):
        if self.lost:
            raise WorkerLostError("Scripted died.")
        return self.inside.receive()

    def restart(self):
        self.lost = False

    def close(self):
        self.inside.close()


class Chooser:
    """Any distribution over the candidates of a context; its value is a number of its own."""

    speaks, chooses, has_critic = False, True, True

    def evaluate(self, contexts, *, going_on=()):
        logprobs = torch.full((len(contexts), max(len(context.candidates) for context in contexts)), -torch.inf)
        for row, context in zip(logprobs, contexts, strict=True):
            count = len(context.candidates)
            row[:count] = torch.log_softmax(torch.arange(count) * (sum(context.prompt_ids) % 7 - 3.0), 0)
        return logprobs, torch.tensor([value_of(context) for context in contexts])


def value_of(context):
    return sum(context.prompt_ids) % 97 / 10


class Speaker(Chooser):
    """Says an action or something else."""

    speaks, chooses = True, False

    def reply(self, contexts, seed, *, going_on=True):
        said = np.random.default_rng(seed).choice(["one", "two", "two three", '{"action": 2}', ""], size=len(contexts))
        return [spoken(text) for text in said.tolist()], self.values(contexts)

    def values(self, contexts):
        return torch.tensor([value_of(context) for context in contexts])


def spoken(text):
    ids = (*TOKENIZER.encode(text), TOKENIZER.eos_token_id)
    return Reply(ids, (-0.5,) * len(ids), True, text)
