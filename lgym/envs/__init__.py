"""Environments: construction, exact values of some, and lgym's own ids, which importing this registers."""

from lgym.envs.babyai import BabyAIEnv
from lgym.envs.frozen_lake import RandomFrozenLakeEnv
from lgym.envs.guess_number import GuessNumberEnv
from lgym.envs.make import make_env
from lgym.envs.maze import MazeEnv
from lgym.envs.reasoning import ReasoningGymEnv
from lgym.envs.sokoban import SokobanEnv
from lgym.envs.text_env import TextEnv
from lgym.envs.textworld import TextWorldEnv

__all__ = [
    "BabyAIEnv",
    "GuessNumberEnv",
    "MazeEnv",
    "RandomFrozenLakeEnv",
    "ReasoningGymEnv",
    "SokobanEnv",
    "TextEnv",
    "TextWorldEnv",
    "make_env",
]
