"""Environments that follow a script, workers that die by one, and policies that need no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from helpers import tiny
from lgym.agents import TextAgent
from lgym.envs.workers import LocalEnv, WorkerEnv, WorkerLostError
from lgym.policies.distribution_cache import DistributionCache
from lgym.rollout import Prompt, Response

TOKENIZER = tiny.tokenizer()


class ScriptedEnv(gymnasium.Env):
    """Length, rewards and end of an episode come from its seed and the script's, what it shows from the
    actions too."""

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
    """Acts like an environment in a worker that dies at certain steps of the episodes of certain seeds, once
    for each."""

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


class CandidateScorer:
    """A candidate-scoring policy whose distributions and values are functions of a prompt's tokens."""

    generates_text, scores_candidates, has_critic = False, True, True
    max_new_tokens = 0

    def act(self, prompts, rng, *, keep_kv_cache=True, bootstrap=()):
        distinct, cache = list(dict.fromkeys(prompts)), DistributionCache()
        logprobs = torch.full((len(distinct), max(len(prompt.candidates) for prompt in distinct)), -torch.inf)
        for row, prompt in zip(logprobs, distinct, strict=True):
            row[: len(prompt.candidates)] = self.logprobs(prompt)
        cache.add(distinct, logprobs, torch.zeros(len(distinct)))
        return cache.act(prompts, rng), self.values(prompts)

    def logprobs(self, prompt: Prompt) -> torch.Tensor:
        return torch.log_softmax(torch.arange(len(prompt.candidates)) * (sum(prompt.token_ids) % 7 - 3.0), 0)

    def values(self, prompts):
        return torch.tensor([prompt_value(prompt) for prompt in prompts])

    def prefetch(self, prompts):
        return


def prompt_value(prompt: Prompt) -> float:
    return sum(prompt.token_ids) % 97 / 10


class FirstCandidatePolicy(CandidateScorer):
    """Gives the first candidate the probability 0.75; a prompt's value is the length of its observation's
    text."""

    def __init__(self) -> None:
        self.new_prompts: list[str] = []
        self.valued: list[str] = []

    def act(self, prompts, rng, *, keep_kv_cache=True, bootstrap=()):
        self.new_prompts += [prompt.observation_text for prompt in bootstrap]
        return super().act(prompts, rng)[0], self._lengths(prompts)

    def logprobs(self, prompt):
        others = len(prompt.candidates) - 1
        return torch.tensor([0.75, *[0.25 / others] * others]).log()

    def values(self, prompts):
        self.valued += [prompt.observation_text for prompt in prompts]
        return self._lengths(prompts)

    def _lengths(self, prompts):
        return torch.tensor([float(len(prompt.observation_text)) for prompt in prompts])


class TextSpeaker(CandidateScorer):
    """A text-generating policy that picks each response from a list of texts."""

    generates_text, scores_candidates = True, False
    max_new_tokens = 16

    def __init__(self, texts: Sequence[str] = ("one", "two", "two three", '{"action": 2}', "")) -> None:
        self.texts = texts

    def act(self, prompts, rng, *, keep_kv_cache=True, bootstrap=()):
        texts = rng.choice(self.texts, size=len(prompts))
        return [text_response(text) for text in texts.tolist()], self.values(prompts)


def text_response(text: str) -> Response:
    """A text and the token that ends a turn."""
    token_ids = (*TOKENIZER.encode(text), TOKENIZER.eos_token_id)
    return Response(token_ids, (-0.5,) * len(token_ids), True, text)
