"""GRPO teaches the tiny model to say one of a few letters; turned-round rewards teach the opposite."""

from __future__ import annotations

import gymnasium
import pytest

from helpers import runs
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
  agent: learning.test_grpo_letters.LetterAgent
  episodes_per_rollout: 128
  group_size: 16
  num_envs: 64
  update_epochs: 2
"""


def curves(tmp_path, model_folder, **options):
    """Each metric of a run, rollout by rollout."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    runs.lgym("fit", tmp_path, model_folder, config, **options)
    return {name: [curve[step] for step in sorted(curve)] for name, curve in runs.scalars(tmp_path).items()}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_grpo_learns_what_is_rewarded(tmp_path, model_folder, sign):
    """Random bytes name a vowel in about one of ten replies; the control is paid for avoiding them."""
    found = curves(tmp_path, model_folder, data__env_kwargs=f"{{sign: {sign}}}")
    first, last = (abs(found["rollout/return_mean"][i]) for i in (0, -1))
    assert 0.02 < first < 0.4
    if sign > 0:
        assert last > 0.9
    else:
        assert last < 0.02
    assert max(found["policy/logprob_gap"]) < 1e-3
