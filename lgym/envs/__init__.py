"""Environments: construction, exact values of some, and lgym's own ids, which importing this registers."""

from lgym.envs.frozen_lake import RandomFrozenLakeEnv
from lgym.envs.make import make_env
from lgym.envs.maze import MazeEnv
from lgym.envs.text_env import TextEnv
from lgym.envs.textworld import TextWorldEnv

__all__ = ["MazeEnv", "RandomFrozenLakeEnv", "TextEnv", "TextWorldEnv", "make_env"]
