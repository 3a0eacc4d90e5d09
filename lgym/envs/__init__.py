"""Environments: how they are made, and what is known exactly about some of them."""

from lgym.envs.frozen_lake import RandomFrozenLakeEnv
from lgym.envs.make import make_env
from lgym.envs.textworld import TextWorldEnv

__all__ = ["RandomFrozenLakeEnv", "TextWorldEnv", "make_env"]
