"""How the policy learns: the base LightningModule and its algorithms, one a file."""

from lgym.modules.a2c import A2C
from lgym.modules.base import PolicyLearner
from lgym.modules.gigpo import GiGPO
from lgym.modules.grpo import GRPO
from lgym.modules.ppo import PPO
from lgym.modules.reinforce import REINFORCE
from lgym.modules.rloo import RLOO
from lgym.modules.text_ppo import TextPPO
from lgym.modules.tokens import TokenLoss

__all__ = ["A2C", "GRPO", "PPO", "REINFORCE", "RLOO", "GiGPO", "PolicyLearner", "TextPPO", "TokenLoss"]
