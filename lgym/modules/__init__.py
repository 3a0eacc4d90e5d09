"""How the policy learns: the base LightningModule and its algorithms, one a file."""

from lgym.modules.base import PolicyLearner
from lgym.modules.grpo import GRPO
from lgym.modules.ppo import PPO

__all__ = ["GRPO", "PPO", "PolicyLearner"]
