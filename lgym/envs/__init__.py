"""Environments: how they are made, and what is known exactly about some of them."""

from lgym.envs.make import make_env

__all__ = ["make_env"]
