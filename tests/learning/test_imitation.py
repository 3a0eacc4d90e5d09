"""Imitation: demonstrations and the run's own best episodes change what is learned, through every kind of policy."""

from __future__ import annotations

import json
import math

import pytest

from helpers import echo
from helpers.runs import lgym, scalars

CONFIG = """
trainer: {{accelerator: cpu, enable_progress_bar: false, max_epochs: 8, check_val_every_n_epoch: 8}}
model:
  class_path: lgym.modules.{algorithm}
  init_args:
    llm: {{lora: {{r: 4}}, value_hidden_size: 16}}
    policy: {policy}
    optimizer: {{class_path: torch.optim.AdamW, init_args: {{lr: 0.02}}}}
    {sft}
data:
  env: Echo-v0
  env_kwargs: {{sign: {sign}}}
  agent: {{class_path: helpers.echo.{agent}}}
  num_envs: {num_envs}
  episodes_per_rollout: 32
  update_epochs: 4
  minibatch_size: {minibatch_size}
  eval_episodes: 100
  {data}
"""
CHOOSES = "{class_path: lgym.policies.CandidatePolicy, init_args: {length_normalization: token, temperature: 3}}"
SPEAKS = "{class_path: lgym.policies.GenerationPolicy, init_args: {max_new_tokens: 6}}"
THINKS = "{class_path: lgym.policies.ThinkPolicy, init_args: {max_reasoning_tokens: 1, cue: ' so: '}}"


class WordExpert:
    """Names the action whose number is shown."""

    def act(self, observation, info):
        return int(observation)


def fit(
    tmp_path,
    model_folder,
    *,
    algorithm="PPO",
    policy=CHOOSES,
    sft="",
    data="",
    sign=0,
    agent="EchoAgent",
    size=2,
    num_envs=32,
):
    config = tmp_path / "config.yaml"
    values = {"algorithm": algorithm, "policy": policy, "sft": sft, "data": data, "sign": sign, "agent": agent}
    config.write_text(CONFIG.format(**values, minibatch_size=size, num_envs=num_envs))
    lgym("fit", tmp_path, model_folder, config)
    return {name: list(curve.values()) for name, curve in scalars(tmp_path).items()}


def lines(tmp_path, wrong=0):
    """Each word shown and said, or the next one."""
    path = tmp_path / "lines.jsonl"
    records = [{"prompt": word, "answer": echo.WORDS[(i + wrong) % 3]} for i, word in enumerate(echo.WORDS)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"demonstrations: [{{class_path: lgym.data.JsonlDemonstrations, init_args: {{path: {path}}}}}]"


EXPERT = (
    "demonstrations: [{class_path: lgym.data.ExpertDemonstrations, init_args: {episodes: 9, "
    "policy: {class_path: learning.test_imitation.WordExpert}}}]"
)


@pytest.mark.parametrize("source", ["lines", "expert"])
def test_demonstrations_alone_teach_the_task(tmp_path, model_folder, source):
    """Every reward is 0, so what is learned is imitated; the return is measured with the sign put back."""
    data = lines(tmp_path) if source == "lines" else EXPERT
    found = fit(tmp_path, model_folder, sft="sft_coef: 1.0\n    sft_rollouts: 8", data=data, sign=1)
    assert found["val_sampled/return_mean"][-1] > 0.6  # chance is 1/3
    assert found["loss/sft"][-1] < found["loss/sft"][0] < math.log(3)  # the mean over a rollout; chance is one of three


def test_wrong_demonstrations_teach_the_wrong_thing(tmp_path, model_folder):
    """The control, and that in the first rollouts nothing else is learned though right answers pay."""
    found = fit(tmp_path, model_folder, sft="sft_coef: 1.0\n    sft_rollouts: 8", data=lines(tmp_path, wrong=1), sign=1)
    assert found["val_sampled/return_mean"][-1] < 0.1


def test_a_warm_start_plays_only_to_be_seen(tmp_path, model_folder):
    """Two rollouts of 4 episodes, one in each environment, then 32 as configured; a reward's loss comes with the third."""
    found = fit(tmp_path, model_folder, sft="sft_rollouts: 2", data=EXPERT, num_envs=4)
    assert found["rollout/episodes"][:4] == [4, 4, 32, 32]
    assert (len(found["loss/sft"]), len(found["loss/policy"])) == (2, 6)


def test_the_weight_counts(tmp_path, model_folder):
    """Beside the reward's loss, the more wrong demonstrations weigh, the less is earned."""
    ends = []
    for name, weight in (("light", 0.001), ("heavy", 30.0)):
        folder = tmp_path / name
        folder.mkdir()
        found = fit(folder, model_folder, sft=f"sft_coef: {weight}", data=lines(folder, wrong=1), sign=1)
        ends.append(found["val_sampled/return_mean"][-1])
    assert ends[1] < ends[0] - 0.15


@pytest.mark.parametrize("policy", [SPEAKS, THINKS], ids=["speaks", "thinks"])
def test_policies_that_speak_imitate_too(tmp_path, model_folder, policy):
    """Text and its end-of-turn token, or the choice behind the cue."""
    found = fit(
        tmp_path,
        model_folder,
        algorithm="REINFORCE",
        policy=policy,
        sft="loss: {clip_low: 0.2, clip_high: 0.2, sft_coef: 1.0, sft_rollouts: 8}",
        data=lines(tmp_path),
        agent="ForgivingEchoAgent",
        sign=1,
        size=8,
    )
    assert found["val_sampled/return_mean"][-1] > 0.5  # chance is 1/3 for thinkers, 0 for free text


def test_the_best_episodes_are_imitated(tmp_path, model_folder):
    """With hardly any weight on the reward's own gradient, imitating what paid is what learns."""
    data = "self_imitation: {class_path: lgym.data.BestEpisodeBuffer, init_args: {top_fraction: 0.3}}"
    algorithm = {"algorithm": "REINFORCE", "sft": "loss: {clip_low: 0.2, clip_high: 0.2, sft_coef: 1.0, sft_rollouts: 8}"}
    found = fit(tmp_path, model_folder, data=data, sign=1, **algorithm)
    assert found["val_sampled/return_mean"][-1] > 0.9
    assert found["rollout/return_mean"][0] < 0.6


@pytest.mark.parametrize(("sft", "data"), [("sft_coef: 1.0", ""), ("", EXPERT)])
def test_half_a_setting_is_refused(tmp_path, sft, data, capsys):
    """A weight without anything to imitate, and the reverse, would have no effect; told before a model is loaded."""
    with pytest.raises(SystemExit):
        fit(tmp_path, "no-such-model", sft=sft, data=data)
    assert "set both sides, or neither" in capsys.readouterr().err
