"""The same learning inside a loop of the user's own, as LlamaGym's users wrote it. Without torch until a
model is given."""

from lgym.loop.agent import Agent

__all__ = ["Agent"]
