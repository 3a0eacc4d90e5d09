# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # An environment of your own
#
# Any Gymnasium environment can be learned. What it shows and what may be done is put into words by an agent: a prompt, the
# names of the actions, and one method. In Colab, run this first:
#
#     %pip install git+<this repository>

# %% tags=["parameters"]
MODEL = "smollm2-135m-instruct"  # a name that lgym knows, a Hub id, or a folder
ROLLOUTS = 10  # of playing and learning in turns

# %% [markdown]
# The environment: a lift with five floors. Somebody waits on one, and has to be taken to another.

# %%
import gymnasium
import numpy as np


class Lift(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(3)  # down, up, open the door
    observation_space = gymnasium.spaces.MultiDiscrete([5, 5, 2])  # the lift, where to go, somebody is in it

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.floor, self.call, self.goal = (int(x) for x in self.np_random.permutation(5)[:3])
        self.carrying = False
        return self.observation(), {}

    def step(self, action):
        if action < 2:
            self.floor = int(np.clip(self.floor + (1 if action else -1), 0, 4))
            return self.observation(), -0.02, False, False, {"success": False}
        arrived = self.carrying and self.floor == self.goal
        self.carrying |= self.floor == self.call
        return self.observation(), float(arrived), arrived, False, {"success": arrived}

    def observation(self):
        return np.array([self.floor, self.goal if self.carrying else self.call, int(self.carrying)])


gymnasium.register("Lift-v0", Lift, max_episode_steps=30)

# %% [markdown]
# The agent, which holds no model and imports no torch:

# %%
from lgym import TextAgent


class LiftAgent(TextAgent):
    system_prompt = "You drive a lift. Answer with one word: down, up or open."
    actions = ("down", "up", "open")  # in the order of the environment's numbers

    def format_observation(self, observation):
        floor, target, carrying = (int(part) for part in observation)
        return f"You are on floor {floor}. {'Bring your guest to' if carrying else 'Somebody waits on'} floor {target}."


print(LiftAgent().format_observation([2, 4, 0]))

# %% [markdown]
# Lightning's trainer does the rest: the module owns the model and the loss, the data module plays.

# %%
import lightning as L

from lgym import PPO, LLMConfig, RolloutDataModule

L.seed_everything(0)
module = PPO(llm=LLMConfig(model=MODEL), gamma=0.95)
data = RolloutDataModule(
    env="Lift-v0",
    agent=LiftAgent(),
    num_envs=64,
    turns_per_rollout=2048,
    update_epochs=4,
    minibatch_size=16,
    eval_episodes=50,
)
trainer = L.Trainer(max_epochs=ROLLOUTS, default_root_dir="runs/lift", check_val_every_n_epoch=ROLLOUTS)
trainer.fit(module, data)

# %% [markdown]
# The share of episodes in which somebody arrived, in evaluation, and the mean return: 1 for that, less 0.02 for every floor.

# %%
for mode in ("sampled", "greedy"):
    success, mean = (
        trainer.callback_metrics[f"val_{mode}/{name}"] for name in ("success_rate", "return_mean")
    )
    print(f"{mode}: {success:.0%} arrived, mean return {mean:.2f}")

# %% [markdown]
# The same from the command line: save agent and environment in a file, and name them in a YAML, which `lgym new` writes.
