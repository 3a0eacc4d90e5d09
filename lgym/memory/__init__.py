"""What an agent is shown beside the observation in hand: lately in this episode, and in episodes before."""

from lgym.memory.episodic import EpisodicMemory
from lgym.memory.records import Memory, PlayedTurn
from lgym.memory.working import WorkingMemory

__all__ = ["EpisodicMemory", "Memory", "PlayedTurn", "WorkingMemory"]
