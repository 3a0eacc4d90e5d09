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
# # A language model learns a game
#
# SmolLM2-135M crosses a frozen lake, which it is told in words, and gets better at it by reinforcement learning.
# Minutes on two CPU cores. In Colab, run this first:
#
#     %pip install git+<this repository>

# %% tags=["parameters"]
MODEL = "smollm2-135m-instruct"  # a name that lgym knows, a Hub id, or a folder
ROLLOUTS = 12  # of playing and learning in turns
TURNS = 8192  # of a rollout

# %% [markdown]
# Every command of lgym can be called from Python. `fit` plays the environment, learns from what was played, and
# evaluates: sampled, as the policy plays in training, and greedy. A return of 1 is the goal; random play has 0.014.

# %%
from lgym.cli import main as lgym

LAKE = ["--data.env", "FrozenLake-v1", "--data.env_kwargs", '{"is_slippery": false}']
RUN = ["--model.llm.model", MODEL, "--trainer.default_root_dir", "runs/lake"]
SIZES = ["--data.num_envs", "64", "--data.turns_per_rollout", str(TURNS), "--data.eval_episodes", "50"]
lgym(["fit", *LAKE, *RUN, *SIZES, "--model.gamma", "0.95", "--trainer.max_epochs", str(ROLLOUTS)])

# %% [markdown]
# Watch it play an episode, with the probability of each action and the value that it expects:

# %%
lgym(["play", *LAKE, *RUN, *SIZES, "--ckpt_path", "last", "--episodes", "1", "--delay", "0"])

# %% [markdown]
# The mean return of each rollout, over the turns that were played:

# %%
from pathlib import Path

import matplotlib.pyplot as plt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = sorted(Path("runs/lake").glob("version_*"))[-1]
events = EventAccumulator(str(run)).Reload()
turns, returns = (
    [entry.value for entry in events.Scalars(tag)] for tag in ("rollout/total_turns", "rollout/return_mean")
)
plt.plot(turns, returns, marker="o")
plt.xlabel("turns")
plt.ylabel("mean return")
plt.show()

# %% [markdown]
# `runs/lake` has the trained adapter too, the episodes, and `report.html`, the run as one page.
