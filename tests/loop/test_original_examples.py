"""docs/llamagym.md: LlamaGym's two examples with the edits that the page shows, which stand in programs of
their form."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "llamagym.md").read_text(encoding="utf-8")
HEADER = """
import os, re
import gymnasium as gym
import wandb
from tqdm import trange
{0}
{1}
"""
MAIN = """
hyperparams = {{
{0}
    "lora/r": 4, "lora/lora_alpha": 8, "lora/lora_dropout": 0.05, "lora/bias": "none", "lora/task_type": "CAUSAL_LM",
    "load_in_8bit": True, "batch_size": 3, "env": "Blackjack-v1", "generate/max_new_tokens": 4,
    "generate/do_sample": True, "generate/top_p": 0.6, "generate/top_k": 0, "generate/temperature": 0.9,
}}
wandb.init(project=os.environ.get("WANDB_PROJECT"), config=hyperparams)
device = "cuda:0"
lora_config = LoraConfig(**{{k.split("/")[-1]: v for k, v in hyperparams.items() if k.startswith("lora/")}})
if True:
{1}
    agent = ExampleAgent(
        model, tokenizer, device, {{k: v for k, v in hyperparams.items() if k.startswith("generate/")}},
        {{"batch_size": hyperparams["batch_size"], "mini_batch_size": hyperparams["batch_size"]}},
    )
"""
BLACKJACK = """
class ExampleAgent(Agent):
    def get_system_prompt(self): return "Say 0 or 1."
    def format_observation(self, observation): return str(observation)
    def extract_action(self, response):
        if found := re.search("[01]", response):
            return int(found[0])
{returned}
{main}
if True:
{env}
for episode in range(4):
    observation, info = env.reset(seed=episode)
    done = False
    while not done:
        observation, reward, terminated, truncated, info = env.step(agent.act(observation))
        agent.assign_reward(reward)
        done = terminated or truncated
    train_stats = agent.terminate_episode()
    wandb.log(train_stats)
"""
TEXT_WORLD = """
import textworld.gym
class ExampleAgent(Agent):
    def get_system_prompt(self): return "Say a command."
    def format_observation(self, observation): return observation[-200:]
    def extract_action(self, response):
        found = re.search("command: (.+)", response)
        return found.group(1) if found else None
{main}
if True:
{env}
        "game.z8", max_episode_steps=4, request_infos=textworld.EnvInfos(admissible_commands=True)
    )
    env = textworld.gym.make(env_id)
    for episode in trange(1):
        observation, info = env.reset()
{start}
        while not done:
            action = agent.act(observation)
            observation, reward, done, info = env.step(action)
{paid}
        rewards = agent.current_episode_rewards
        train_stats = agent.terminate_episode()
        wandb.log(train_stats)
"""


def edits() -> list[list[str]]:
    """The text after each edit, of each block of edits in the section on the examples."""
    section = PAGE.split("## LlamaGym's two examples\n")[1].split("\n## ")[0]
    return [
        ["\n".join(line[1:] for line in hunk.splitlines() if line[0] != "-") for hunk in block.split("@@\n")]
        for block in re.findall(r"```diff\n(.*?)```", section, flags=re.DOTALL)
    ]


@pytest.fixture
def logged(monkeypatch) -> list[dict]:
    """What is logged, in place of wandb, which lgym does not need."""
    wandb, told = ModuleType("wandb"), []
    wandb.init, wandb.log = lambda **settings: None, told.append
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return told


def run(program: str, both: list[str], model_folder: Path) -> dict:
    """The program with the edits for both examples and the tiny model; all three warnings are given."""
    agent, libraries, name, model = both
    name = name.replace("smollm2-135m-instruct", str(model_folder))
    assert str(model_folder) in name
    space: dict = {}
    code = HEADER.format(agent, libraries) + program.replace("{main}", MAIN.format(name, model))
    with (
        pytest.warns(UserWarning, match="device cuda:0 is not there .* running on the CPU"),
        pytest.warns(UserWarning, match="top_p 0.6"),
        pytest.warns(UserWarning, match="names no action .* plays default_action, which is"),
    ):
        exec(code, space)
    return space


def test_blackjack(model_folder, logged):
    both, (returned, env), _ = edits()
    program = BLACKJACK.replace("{returned}", returned).replace("{env}", env)
    agent = run(program, both, model_folder)["agent"]
    assert isinstance(agent.default_action, int)
    assert gymnasium.make("Blackjack-v1").action_space.contains(agent.default_action)
    assert any("loss/total" in metrics for metrics in logged)
    assert sum(metrics.get("rollout/parse_rate", 0) < 1 for metrics in logged)


class Game:
    """A text game as TextWorld pays: with the score so far, and for commands in words."""

    scores = (0, 1, 1, 3)

    def reset(self):
        self.turn = 0
        return "You are in a room.", {}

    def step(self, command: str):
        assert command == "look"
        score, self.turn = self.scores[self.turn], self.turn + 1
        return "A room.", score, self.turn == len(self.scores), {}


def test_text_world(model_folder, logged, monkeypatch):
    """Of the scores 0, 1, 1 and 3 each turn is paid what it added."""
    textworld, games = ModuleType("textworld"), ModuleType("textworld.gym")
    textworld.gym, textworld.EnvInfos = games, dict
    games.register_game, games.make = lambda path, **settings: path, lambda env_id: Game()
    monkeypatch.setitem(sys.modules, "textworld", textworld)
    monkeypatch.setitem(sys.modules, "textworld.gym", games)
    both, _, (env, start, paid) = edits()
    program = TEXT_WORLD.replace("{env}", env).replace("{start}", start).replace("{paid}", paid)
    assert run(program, both, model_folder)["rewards"] == [0, 1, 0, 2]
    assert "loss/total" in logged[-1]
