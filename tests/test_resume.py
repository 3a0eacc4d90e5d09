"""A run that was stopped and resumed is the run that was not stopped: bit for bit."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.letters import CONFIG as LETTERS
from helpers.runs import assert_same, assert_same_run, checkpoint, lgym, scalars
from lgym.callbacks.provenance import read_run
from lgym.cli.trainer import FinalEvaluation
from lgym.data.rollout.collector import Collector
from lgym.modules import PPO

COUNTING = {
    "data__env": "Counting-v0",
    "data__agent": "helpers.echo.CountingAgent",
    "data__episodes_per_rollout": None,
    "data__turns_per_rollout": 24,
    "data__max_episode_steps": 5,
}
EXPLORING = {
    **COUNTING,
    "data__max_episode_steps": 11,
    "data__frame_skip": 2,
    "data__exploration_bonus": '{"class_path": "lgym.data.ExplorationBonus", "init_args": {"anneal": 8}}',
    "data__demonstrations": '[{"class_path": "lgym.data.EveryAction"}]',
}
FROZEN = {**COUNTING, "model__init_args__llm__lora__last_blocks": 1, "trainer__precision": "bf16-true"}
REPLAY = {
    **COUNTING,
    "model": "lgym.modules.DQN",
    "model__init_args__polyak": 0.1,
    "data__replay": '{"class_path": "lgym.data.ReplayBuffer", "init_args": {"capacity": 60, "minibatch_size": 8, '
    '"updates_per_rollout": 3, "learning_starts": 40}}',
}
BY_ERRORS = {
    **REPLAY,
    "model__init_args__action_values": "head",
    "data__replay": REPLAY["data__replay"].replace("ReplayBuffer", "PrioritizedReplayBuffer"),
}
BY_GRAPH = {
    **REPLAY,
    "data__replay": REPLAY["data__replay"].replace("ReplayBuffer", "GraphReplayBuffer"),
}
SAC = {**REPLAY, "model": "lgym.modules.SAC"}
IMITATING = {
    "model__init_args__policy": "lgym.policies.GenerationPolicy",
    "model__init_args__policy__init_args__max_new_tokens": 4,
    "model__init_args__sft__rollouts": 2,
    "data__agent": "helpers.echo.ForgivingEchoAgent",
    "data__demonstrations": '[{"class_path": "lgym.data.EveryAction"}]',
}
SHORT_PASSES = IMITATING | {"data__self_imitation__top_fraction": 0.5, "data__sft_turns_per_pass": 5}
SCHEDULE = {
    "model__init_args__lr_scheduler": "torch.optim.lr_scheduler.LinearLR",
    "model__init_args__lr_scheduler__init_args__total_iters": 4,
}


@pytest.mark.parametrize(
    ("options", "stop"),
    [
        pytest.param({}, 3, id="episodes-3"),
        pytest.param(COUNTING, 1, id="turns-in-mid-episode-1"),
        pytest.param(SCHEDULE, 3, id="schedule-3"),
        pytest.param(EXPLORING, 1, id="exploration-1"),
        pytest.param(FROZEN, 2, id="frozen-blocks-2"),
        pytest.param(REPLAY, 2, id="replay-2"),
        pytest.param(BY_ERRORS, 2, id="prioritized-replay-and-action-head-2"),
        pytest.param(BY_GRAPH, 2, id="graph-replay-2"),
        pytest.param(SAC, 2, id="sac-2"),
        pytest.param(IMITATING, 1, id="imitating-1"),
        pytest.param(IMITATING, 2, id="imitating-2"),
        pytest.param(SHORT_PASSES, 1, id="short-passes-1"),
        pytest.param({}, 1, id="episodes-1", marks=pytest.mark.slow),
        pytest.param(COUNTING, 3, id="turns-in-mid-episode-3", marks=pytest.mark.slow),
        pytest.param(SCHEDULE, 1, id="schedule-1", marks=pytest.mark.slow),
    ],
)
def test_stopped_and_resumed_equals_uninterrupted(tmp_path, model_folder, options, stop):
    """Weights, optimizer, random states, environments and metrics (TRL#3247, NeMo-RL#3599)."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=4, **options)
    lgym("fit", parts, model_folder, trainer__max_epochs=stop, **options)
    lgym("fit", parts, model_folder, trainer__max_epochs=4, ckpt_path="last", **options)
    assert_same_run(whole, parts)
    assert not (parts / "version_1").exists(), "a resumed run goes on in its own folder"


def test_imitation_has_a_rate_of_its_own(tmp_path, model_folder):
    """Eight times the rate of what comes behind it, unless a rate is given; warm-up and fall go on."""
    schedule = [1 / 3, 2 / 3, 1.0, 0.55]
    for name, settings, rates in (
        ("default", {}, (8e-4, 1e-4)),
        ("scaled", {"model__init_args__sft__lr_scale": 2}, (2e-4, 1e-4)),
        ("given", {"model__init_args__optimizer": "torch.optim.AdamW"}, (1e-3, 1e-3)),
    ):
        lgym("fit", tmp_path / name, model_folder, **IMITATING, trainer__max_epochs=4, **settings)
        got = list(scalars(tmp_path / name)["optim/lr"].values())
        assert got == pytest.approx(
            [rate * share for rate, share in zip(2 * rates[:1] + 2 * rates[1:], schedule, strict=True)]
        )


def test_a_finished_run_plays_nothing_more(tmp_path, model_folder, monkeypatch, capsys):
    """Lightning asked for a batch, and so for a rollout, before it looked whether there was anything left to
    do. What is given more afterwards goes on as if nobody had asked."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=3)
    lgym("fit", parts, model_folder, trainer__max_epochs=2)
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "play", None)
        capsys.readouterr()
        lgym("fit", parts, model_folder, trainer__max_epochs=2, ckpt_path="last")
    assert "Nothing was left to do after 2 rollouts" in capsys.readouterr().out
    lgym("fit", parts, model_folder, trainer__max_epochs=3, ckpt_path="last")
    assert_same_run(whole, parts, validated_alike=False)


def test_a_run_killed_within_its_last_evaluation_makes_up_for_it(tmp_path, model_folder, monkeypatch, capsys):
    """The last checkpoint is there, and so nothing is left to train; but the run has no result yet."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = {"trainer__max_epochs": 3, "trainer__check_val_every_n_epoch": 2}
    lgym("fit", whole, model_folder, **settings)

    class Killed(Exception):
        """The end of this process."""

    def killed(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FinalEvaluation, "on_train_end", killed)
        with pytest.raises(Killed):
            lgym("fit", parts, model_folder, **settings)
    run = parts / "version_0"
    assert not read_run(run)["finished"]
    lgym("fit", parts, model_folder, ckpt_path="last", **settings)
    assert_same_run(whole, parts)
    result = read_run(run)
    assert result["finished"]
    assert result["results"] == read_run(whole / "version_0")["results"]
    capsys.readouterr()
    lgym("fit", parts, model_folder, ckpt_path="last", **settings)
    assert "Nothing was left to do" in capsys.readouterr().out
    assert read_run(run)["results"] == result["results"], "a session without any would take them away"


def test_grpo_resumes_exactly(tmp_path, model_folder):
    """What was sampled token by token comes from the data side's random state, and so goes on where it
    stopped. The first part ends with an evaluation that the whole run does not have: nothing else may differ
    for that."""
    config = tmp_path / "letters.yaml"
    config.write_text(LETTERS)
    settings = {
        "config": config,
        "data__episodes_per_rollout": 32,
        "data__agent": "helpers.letters.LetterAgent",
    }
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=4, **settings)
    lgym("fit", parts, model_folder, trainer__max_epochs=2, **settings)
    lgym("fit", parts, model_folder, trainer__max_epochs=4, ckpt_path="last", **settings)
    assert_same_run(whole, parts, validated_alike=False)
    assert "rollout/parse_rate" in scalars(parts)


TALK = """
trainer: {{accelerator: cpu, enable_progress_bar: false, check_val_every_n_epoch: 10}}
model:
  class_path: lgym.modules.PPO
  init_args:
    llm: {{lora: {{r: 4}}, value_hidden_size: 16}}
    policy: {{class_path: lgym.policies.{policy}}}
    advantage_level: token
    sft: {sft}
data:
  env: Counting-v0
  max_episode_steps: 4
  agent: {{class_path: helpers.echo.CountingAgent}}
  num_envs: 4
  minibatch_size: 8
  {data}
"""
MID_TALK = "turns_per_rollout: 24\n  history: full"
WARM = """episodes_per_rollout: 8
  demonstrations:
    - class_path: lgym.data.ExpertDemonstrations
      init_args: {episodes: 4, policy: {class_path: lgym.agents.experts.Uniform, init_args: {actions: 2}}}"""
BEST = """episodes_per_rollout: 8
  self_imitation:
    class_path: lgym.data.BestEpisodeBuffer
    init_args: {top_fraction: 0.5, min_return: 0} # all its episodes pay alike"""
DAGGER = """episodes_per_rollout: 8
  dagger: {policy: {class_path: lgym.agents.experts.Uniform, init_args: {actions: 2}}}"""
MEMORIES = """turns_per_rollout: 24
  history: {history}
  eval_episodes: 2
  update_epochs: 1
  working_memory: {{turns: 2, max_characters: 50}}
  episodic_memory: {{unit: {unit}, half_life: 2, capacity: 20, max_characters: 30}}"""
THINKS = "ThinkPolicy, init_args: {max_reasoning_tokens: 3}"
SPEAKS = "GenerationPolicy, init_args: {max_new_tokens: 4}"


@pytest.mark.parametrize(
    ("policy", "data", "sft", "stop", "last"),
    [
        pytest.param(THINKS, MID_TALK, "{}", 1, 2, id="mid-conversation-thinks"),
        pytest.param(SPEAKS, MID_TALK, "{}", 1, 2, id="mid-conversation-speaks"),
        pytest.param(THINKS, BEST, "{coef: 1.0}", 2, 3, id="replay-thinks", marks=pytest.mark.slow),
        pytest.param(SPEAKS, BEST, "{coef: 1.0}", 2, 3, id="replay-speaks", marks=pytest.mark.slow),
        pytest.param(SPEAKS, DAGGER, "{rollouts: 2}", 1, 3, id="dagger-speaks"),
        pytest.param(THINKS, WARM, "{rollouts: 2}", 1, 3, id="warm-up-thinks", marks=pytest.mark.slow),
        pytest.param(SPEAKS, WARM, "{rollouts: 2}", 1, 3, id="warm-up-speaks", marks=pytest.mark.slow),
    ],
)
def test_conversations_and_imitation_resume_exactly(tmp_path, model_folder, policy, data, sft, stop, last):
    """Standing in the middle of conversations, after 6 turns, 2 into an episode, every token of them is
    brought back; the best episodes are kept; and a warm start by demonstrations goes on for the rollouts that
    are left of it."""
    config = tmp_path / "talk.yaml"
    config.write_text(TALK.format(policy=policy, sft=sft, data=data))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    few = {"data__eval_episodes": 4}
    lgym("fit", whole, model_folder, config, trainer__max_epochs=last, **few)
    lgym("fit", parts, model_folder, config, trainer__max_epochs=stop, **few)
    lgym("fit", parts, model_folder, config, trainer__max_epochs=last, ckpt_path="last", **few)
    assert_same_run(whole, parts, validated_alike=False)


@pytest.mark.parametrize(
    ("history", "unit"), [(0, "turn"), pytest.param("full", "episode", marks=pytest.mark.slow)]
)
def test_memories_resume_exactly(tmp_path, model_folder, history, unit):
    """What is remembered, and in mid-episode, after 12 turns in each environment, what was shown of it. By
    then episodes of five replies that nobody could read have been stored."""
    config = tmp_path / "memories.yaml"
    config.write_text(TALK.format(policy=SPEAKS, sft="{}", data=MEMORIES.format(history=history, unit=unit)))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, config, trainer__max_epochs=3)
    lgym("fit", parts, model_folder, config, trainer__max_epochs=2)
    state = checkpoint(parts)["RolloutDataModule"]
    assert state["episodic_memory"]["entries"]
    assert "return" in state["ranks"][0]["collector"]["runners"][0]["shown"][-1]
    lgym("fit", parts, model_folder, config, trainer__max_epochs=3, ckpt_path="last")
    assert_same_run(whole, parts, validated_alike=False)


def test_ctrl_c_leaves_a_checkpoint_to_go_on_from(tmp_path, model_folder, monkeypatch, capsys):
    """Interrupted in mid-update of the second rollout, then resumed: the same run, and nothing of the torn
    rollout."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=3)
    sound = PPO.loss

    def interrupted(self, batch):
        if self.trainer.current_epoch == 1:
            raise KeyboardInterrupt
        return sound(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "loss", interrupted)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            lgym("fit", parts, model_folder, trainer__max_epochs=3)
    assert "--ckpt_path last goes on from there" in capsys.readouterr().out
    lgym("fit", parts, model_folder, trainer__max_epochs=3, ckpt_path="last")
    assert_same(checkpoint(whole)["state_dict"], checkpoint(parts)["state_dict"])
    assert_same(checkpoint(whole)["RolloutDataModule"], checkpoint(parts)["RolloutDataModule"])


def test_a_changed_learning_rate_takes_effect_on_resume(tmp_path, model_folder):
    """Lightning restores the old rate with the optimizer, silently."""
    constant = {"model__init_args__lr_scheduler": "null"}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, **constant)
    assert checkpoint(tmp_path)["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(8e-4)
    adamw = {
        "model__init_args__optimizer": "torch.optim.AdamW",
        "model__init_args__optimizer__init_args__lr": 0.02,
    }
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, ckpt_path="last", **constant, **adamw)
    assert checkpoint(tmp_path)["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.02)
    assert list(scalars(tmp_path)["optim/lr"].values()) == pytest.approx([8e-4, 0.02])


def test_a_changed_learning_rate_keeps_its_place_in_the_schedule(tmp_path, model_folder):
    """LinearLR from 1/3 to 1 in 4: after 2 rollouts 1/3 + 2/3 * 2/4 = 2/3 of the rate, old or new."""
    adamw = {"model__init_args__optimizer": "torch.optim.AdamW"}
    rate = "model__init_args__optimizer__init_args__lr"
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **SCHEDULE, **adamw, **{rate: 0.003})
    lgym(
        "fit",
        tmp_path,
        model_folder,
        trainer__max_epochs=3,
        ckpt_path="last",
        **SCHEDULE,
        **adamw,
        **{rate: 0.03},
    )
    third = list(scalars(tmp_path)["optim/lr"].values())[2]
    assert third == pytest.approx(0.03 * 2 / 3, rel=1e-5)


def test_the_learning_rate_falls_over_the_run(tmp_path, model_folder):
    """PPO's own schedule: 1/3, 2/3 and all of the rate, and after 2 of 4 rollouts halfway to a tenth. Prolonged
    to 6 it goes on as a run of 6, whose fall has 4 rollouts."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=4)
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=6, ckpt_path="last")
    rates = [value / 8e-4 for value in scalars(tmp_path)["optim/lr"].values()]
    assert rates[:4] == pytest.approx([1 / 3, 2 / 3, 1.0, 0.55], rel=1e-5)
    assert rates[4:] == pytest.approx([0.55, 0.1 + 0.9 * (1 + math.cos(math.pi * 3 / 4)) / 2], rel=1e-5)


def test_a_checkpoint_holds_what_was_trained_and_nothing_else(tmp_path, model_folder):
    """The frozen base model would be nine tenths of the file; an unsafe object would not load."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    saved = checkpoint(tmp_path)  # loads with weights_only=True
    assert all("lora" in name or "value_head" in name for name in saved["state_dict"])
    assert "hyper_parameters" not in saved


def test_every_weight_is_saved_when_every_weight_is_trained(tmp_path, model_folder):
    """Full fine-tuning has no frozen base to leave out, and resumes as well."""
    config = tmp_path / "whole.yaml"
    config.write_text(
        "model: {class_path: lgym.modules.PPO, init_args: {llm: {lora: null}}}\n"
        "data: {env: Echo-v0, agent: {class_path: helpers.echo.EchoAgent}, episodes_per_rollout: 16, num_envs: 4}\n"
        "trainer: {accelerator: cpu, enable_progress_bar: false}\n"
    )
    lgym("fit", tmp_path, model_folder, config, trainer__max_epochs=1)
    first = checkpoint(tmp_path)["state_dict"]
    assert any("embed_tokens" in name for name in first)
    lgym("fit", tmp_path, model_folder, config, trainer__max_epochs=2, ckpt_path="last")
    assert not all(
        torch.equal(first[name], tensor) for name, tensor in checkpoint(tmp_path)["state_dict"].items()
    )


def test_the_exported_adapter_opens_with_peft(tmp_path, model_folder):
    """As a plain folder, with the weights of the checkpoint."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    opened = PeftModel.from_pretrained(base, tmp_path / "version_0" / "adapter")
    saved = {name.split("policy.llm.model.")[-1]: t for name, t in checkpoint(tmp_path)["state_dict"].items()}
    adapters = {name: p for name, p in opened.named_parameters() if "lora" in name}
    assert adapters
    for name, parameter in adapters.items():
        assert torch.equal(parameter, saved[name]), name
