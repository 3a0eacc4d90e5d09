"""The words of environments for a language model: one agent file per environment."""

from lgym.agents.babyai import BabyAIAgent
from lgym.agents.base import TextAgent
from lgym.agents.blackjack import BlackjackAgent, BlackjackJsonAgent
from lgym.agents.cartpole import CartPoleAgent
from lgym.agents.cliff_walking import CliffWalkingAgent
from lgym.agents.frozen_lake import FrozenLakeAgent
from lgym.agents.general import GeneralAgent
from lgym.agents.guess_number import GuessNumberAgent
from lgym.agents.maze import MazeAgent
from lgym.agents.sokoban import SokobanAgent
from lgym.agents.taxi import TaxiAgent
from lgym.agents.textworld import TextWorldAgent

__all__ = [
    "BabyAIAgent",
    "BlackjackAgent",
    "BlackjackJsonAgent",
    "CartPoleAgent",
    "CliffWalkingAgent",
    "FrozenLakeAgent",
    "GeneralAgent",
    "GuessNumberAgent",
    "MazeAgent",
    "SokobanAgent",
    "TaxiAgent",
    "TextAgent",
    "TextWorldAgent",
]
