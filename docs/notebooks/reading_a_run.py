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
# # Reading a run
#
# What a run leaves behind, and what to look at first when nothing is learned. In Colab, run this first:
#
#     %pip install git+<this repository>

# %% tags=["parameters"]
MODEL = "smollm2-135m-instruct"  # a name that lgym knows, a Hub id, or a folder
ROLLOUTS = 5  # of playing and learning in turns

# %% [markdown]
# A short run of Blackjack to read:

# %%
from pathlib import Path

from lgym.cli import main as lgym

SIZES = ["--data.num_envs", "128", "--data.episodes_per_rollout", "5000", "--data.eval_episodes", "200"]
RUN = ["--model.llm.model", MODEL, "--trainer.default_root_dir", "runs/reading"]
lgym(["fit", "--data.env", "Blackjack-v1", *RUN, *SIZES, "--trainer.max_epochs", str(ROLLOUTS)])
run = sorted(Path("runs/reading").glob("version_*"))[-1]
print(*sorted(path.name for path in run.iterdir()), sep="\n")

# %% [markdown]
# **Does it learn?** The return rises, the entropy falls slowly, and the divergence of an update stays small. An
# entropy that drops to 0 within a rollout is a collapse; a divergence of 0 means that nothing is learned.

# %%
import matplotlib.pyplot as plt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
shown = ("rollout/return_mean", "policy/entropy", "policy/old_kl", "value/explained_variance")
figure, axes = plt.subplots(1, len(shown), figsize=(4 * len(shown), 3))
for axis, tag in zip(axes, shown, strict=True):
    axis.plot([entry.value for entry in events.Scalars(tag)], marker="o")
    axis.set_title(tag)
plt.show()

# %% [markdown]
# **What does it do?** Some episodes of each rollout are written as JSON lines: what was shown, what was answered, and what
# was paid.

# %%
import json

episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text(encoding="utf-8").splitlines()]
for turn in episodes[-1]["turns"]:
    print(f"{turn['observation_text']!r} -> {turn['response_text']!r}, reward {turn['reward']}")

# %% [markdown]
# **Where does the time go?** Playing, learning, and the environment's own part of playing, in seconds of the last rollout:

# %%
for tag in ("time/rollout_seconds", "time/environment_seconds", "time/update_seconds"):
    print(f"{tag:28} {events.Scalars(tag)[-1].value:.1f}")

# %% [markdown]
# **What was run?** `run.json` has the command, the commit, the versions and the machine; `config.yaml` every setting. Every
# metric is explained in `docs/metrics.md`.

# %%
print(json.dumps(json.loads((run / "run.json").read_text(encoding="utf-8")), indent=1)[:1000])
