"""What an agent is shown beside the observation in hand: lately in this episode, and in episodes before."""

from lgym.memory.entries import Memory, RememberedTurn
from lgym.memory.episodic import EpisodicMemory
from lgym.memory.working import WorkingMemory

__all__ = ["EpisodicMemory", "Memory", "RememberedTurn", "WorkingMemory"]
