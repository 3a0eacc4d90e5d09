"""Environments to put into worker processes: what a test needs of them is here, where nothing imports
torch."""

from __future__ import annotations

import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from helpers import echo
from lgym.agents import TextAgent
from lgym.types import ParsedAction


class RoomsEnv(gymnasium.Env):
    """Observations are a Dict or a Text, the legal actions are in `info`, and actions are texts."""

    action_space = spaces.Text(10)

    def __init__(self, text: bool) -> None:
        self.text = text
        self.observation_space = (
            spaces.Text(50) if text else spaces.Dict({"room": spaces.Text(9), "at": spaces.Box(0, 9, (2,))})
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._show("")

    def step(self, action):
        observation, info = self._show(action)
        return observation, len(action) / 10, bool(self.np_random.random() < 0.3), False, info

    def _show(self, action):
        room = ["hall", "kitchen", "attic"][int(self.np_random.integers(3))]
        at = self.np_random.random(2).astype(np.float32)
        info = {"admissible_commands": ["look", "go east", "go west"][: 2 + int(self.np_random.integers(2))]}
        return (f"{room} {action} {at[0]!r}" if self.text else {"room": room, "at": at}), info


class RoomsAgent(TextAgent):
    system_prompt = "Look round."
    fallback = "random"

    def format_observation(self, observation) -> str:
        return (
            observation
            if isinstance(observation, str)
            else f"{observation['room']} {observation['at'].tolist()!r}"
        )

    def candidates(self, observation, info):
        return info["admissible_commands"]

    def extract_action(self, text):
        return (
            ParsedAction(text) if text.startswith(("look", "go")) else ParsedAction.failure("no such thing")
        )


class RandomCountingAgent(echo.CountingAgent):
    fallback = "random"


class FaultyEnv(echo.CountingEnv):
    """Counts, and in turn 2 of the episode of one seed (or of all), hangs, dies or raises, once or always."""

    def __init__(self, how: str, once: str = "", faulty_seed: int | None = 101) -> None:
        self.how, self.once, self.faulty_seed = how, once, faulty_seed

    def reset(self, *, seed=None, options=None):
        self.faulty = self.faulty_seed in (seed, None)
        if self.how == "raise at reset" and self.faulty:
            raise OSError("the port is taken")
        return super().reset(seed=seed)

    def step(self, action):
        if self.faulty and self._state[1] == 1 and not (self.once and Path(self.once).exists()):
            if self.once:
                Path(self.once).touch()
            if self.how == "hang":
                time.sleep(30)
            if self.how == "die":
                os._exit(3)
            if self.how == "raise":
                raise ValueError("no such door")
        return super().step(action)


class SayingEnv(echo.EchoEnv):
    """Echo that says at its last step whether it has succeeded."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"is_success": reward == 1.0}


for name, env in (("Rooms-v0", RoomsEnv), ("Faulty-v0", FaultyEnv), ("Saying-v0", SayingEnv)):
    if name not in gymnasium.registry:
        gymnasium.register(name, env)
