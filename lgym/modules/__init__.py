"""Algorithms: the base LightningModule, and one file each."""

from lgym.modules.a2c import A2C
from lgym.modules.actor_critic import ActorCritic
from lgym.modules.base import LLMLearner
from lgym.modules.configs import CriticConfig, LossConfig, SFTConfig
from lgym.modules.cql import CQL
from lgym.modules.dqn import DQN
from lgym.modules.gigpo import GiGPO
from lgym.modules.grpo import GRPO
from lgym.modules.iql import IQL
from lgym.modules.policy_learner import PolicyLearner
from lgym.modules.ppo import PPO
from lgym.modules.reinforce import REINFORCE
from lgym.modules.replay_learner import ReplayLearner
from lgym.modules.rloo import RLOO
from lgym.modules.sac import SAC

__all__ = [
    "A2C",
    "CQL",
    "DQN",
    "GRPO",
    "IQL",
    "PPO",
    "REINFORCE",
    "RLOO",
    "SAC",
    "ActorCritic",
    "CriticConfig",
    "GiGPO",
    "LLMLearner",
    "LossConfig",
    "PolicyLearner",
    "ReplayLearner",
    "SFTConfig",
]
