"""A tiny environment for models that speak, and a run of GRPO in it."""

from __future__ import annotations

import gymnasium

from lgym.agents import TextAgent
from lgym.types import ParsedAction


class LetterEnv(gymnasium.Env):
    """One turn: reward 1 for a vowel, turned round with `sign=-1`."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(26)

    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return int(self.np_random.integers(3)), {}

    def step(self, action):
        return 0, self.sign * float(chr(97 + action) in "aeiou"), True, False, {}


class LetterAgent(TextAgent):
    system_prompt = "Say a letter."
    fallback = "end_episode"
    penalty = 0.0

    def format_observation(self, observation):
        return "abc"[observation]

    def extract_action(self, text):
        letters = [ord(letter) - 97 for letter in text.lower() if "a" <= letter <= "z"]
        return ParsedAction(letters[0]) if letters else ParsedAction.failure("no letter")


if "Letter-v0" not in gymnasium.registry:
    gymnasium.register("Letter-v0", LetterEnv)


CONFIG = """
trainer: {accelerator: cpu, enable_progress_bar: false, max_epochs: 15, check_val_every_n_epoch: 15}
model:
  class_path: lgym.modules.GRPO
  init_args:
    llm: {lora: {r: 4}}
    policy: {max_new_tokens: 2}
    optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.02}}
data:
  env: Letter-v0
  agent: helpers.letters.LetterAgent
  episodes_per_rollout: 128
  group_size: 16
  num_envs: 64
  update_epochs: 2
"""
