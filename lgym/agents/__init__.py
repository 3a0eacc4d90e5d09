"""How an environment reads to a language model: one agent file an environment."""

from lgym.agents.base import TextAgent
from lgym.agents.blackjack import BlackjackAgent
from lgym.agents.cartpole import CartPoleAgent

__all__ = ["BlackjackAgent", "CartPoleAgent", "TextAgent"]
