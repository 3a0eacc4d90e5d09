"""LlamaGym 0.1.1's own loop, timed. Runs in LlamaGym's environment, not in lgym's;
`scripts/bench.py --peer llamagym` starts it.

    python llamagym_job.py MODEL_FOLDER Blackjack-v1 SECONDS LONGEST

Trains as LlamaGym's README does (its defaults: 32 new tokens, batches of 16) for at least SECONDS and at
least one batch, but no longer than LONGEST seconds, and prints one JSON line: environment steps, batches
trained, seconds, and whether it was stopped amid a batch. Loading is not timed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import gymnasium as gym
import torch
from llamagym import Agent
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import AutoModelForCausalLMWithValueHead

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}[INST] <<SYS>> {{ message['content'] }} <</SYS>> "
    "{% elif message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST] "
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
)
"""In the style of Llama 2: LlamaGym finds replies by their `[/INST]`."""

BATCHES = {
    "Blackjack-v1": {"batch_size": 16, "mini_batch_size": 16},
    "CartPole-v1": {"batch_size": 16, "mini_batch_size": 1},
}
"""LlamaGym's own, but that CartPole's whole conversations, sixteen at a time, do not fit 24 GiB."""


class Player(Agent):
    """Any reply counts as an action, and none is empty: LlamaGym fails on one that is."""

    task = ""

    def get_system_prompt(self) -> str:
        if self.task == "Blackjack-v1":
            return "You play Blackjack against a dealer. Answer hit or stay."
        return "You balance a pole on a cart. Answer left or right."

    def format_observation(self, observation) -> str:
        if self.task == "Blackjack-v1":
            return f"Your hand: {observation[0]}, dealer: {observation[1]}, usable ace: {observation[2]}"
        return "cart {} moving {}, pole {} turning {}".format(
            *(round(100 * float(part)) for part in observation)
        )

    def extract_action(self, response: str) -> int:
        return int(("hit" if self.task == "Blackjack-v1" else "right") in response.lower())

    def llm(self, messages) -> str:
        return super().llm(messages) or "hit"


def main() -> None:
    folder, task, seconds, longest = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    torch.manual_seed(0)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = AutoModelForCausalLMWithValueHead.from_pretrained(folder, peft_config=lora)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.pad_token = tokenizer.eos_token
    Player.task = task
    agent = Player(model, tokenizer, "cpu", ppo_config_dict=BATCHES[task])
    env = gym.make(task)
    steps = batches = episode = 0
    begun = time.perf_counter()

    def tell(stopped: bool) -> None:
        spent = time.perf_counter() - begun
        print(
            json.dumps({"steps": steps, "batches": batches, "seconds": spent, "stopped": stopped}), flush=True
        )

    def stop() -> None:
        tell(stopped=True)
        os._exit(0)  # it may be amid an update that takes an hour

    watch = threading.Timer(longest, stop)
    watch.start()
    while time.perf_counter() - begun < seconds or batches == 0:
        observation, _ = env.reset(seed=episode)
        done, turns = False, 0
        while not done:
            action = agent.act(observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            agent.assign_reward(reward)
            done, steps, turns = terminated or truncated, steps + 1, turns + 1
        batches += bool(agent.terminate_episode())
        episode += 1
    watch.cancel()
    tell(stopped=False)


if __name__ == "__main__":
    main()
