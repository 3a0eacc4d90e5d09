"""Live episodes, recorded token for token, and demonstrations to learn from."""

from lgym.data.datamodule import RolloutDataModule
from lgym.data.dataset import RolloutDataset
from lgym.data.graph_replay import GraphReplayBuffer
from lgym.data.imitation.best_episodes import BestEpisodeBuffer
from lgym.data.imitation.dagger import DAgger
from lgym.data.imitation.demonstrations import JsonlDemonstrations
from lgym.data.imitation.every_action import EveryAction
from lgym.data.imitation.expert_demonstrations import ExpertDemonstrations
from lgym.data.prioritized_replay import PrioritizedReplayBuffer
from lgym.data.replay_buffer import ReplayBuffer
from lgym.data.rollout.exploration_bonus import ExplorationBonus

__all__ = [
    "BestEpisodeBuffer",
    "DAgger",
    "EveryAction",
    "ExpertDemonstrations",
    "ExplorationBonus",
    "GraphReplayBuffer",
    "JsonlDemonstrations",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RolloutDataModule",
    "RolloutDataset",
]
