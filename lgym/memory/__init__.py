"""Memories that an agent is shown beside the observation: of the current episode, and of episodes before."""

from lgym.memory.entries import Memory, RememberedTurn
from lgym.memory.episodic import EpisodicMemory
from lgym.memory.working import WorkingMemory

__all__ = ["EpisodicMemory", "Memory", "RememberedTurn", "WorkingMemory"]
