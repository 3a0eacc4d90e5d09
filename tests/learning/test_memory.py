"""Learning of what the observation alone does not tell: with each memory, and a control without."""

from __future__ import annotations

from functools import partial

import torch

from helpers.memories import LaterAgent, NamesAgent
from helpers.training import fit, tiny_config
from lgym.memory import EpisodicMemory, WorkingMemory
from lgym.modules import PPO, LossConfig
from lgym.policies import CandidatePolicy


def ppo(model_folder, entropy_coef=0.01) -> PPO:
    return PPO(
        llm=tiny_config(model_folder),
        policy=CandidatePolicy(length_normalization="token", temperature=3),
        optimizer=partial(torch.optim.AdamW, lr=0.005),
        loss=LossConfig(entropy_coef=entropy_coef, old_kl_coef=0.3),
    )


def learn_later(tmp_path, model_folder, **memory):
    """Twelve rollouts of a task whose word is asked for a turn after it was shown."""
    data = {
        "env": "Later-v0",
        "agent": LaterAgent(),
        "num_envs": 32,
        "episodes_per_rollout": 96,
        "update_epochs": 8,
        "eval_episodes": 200,
    }
    trainer = {"max_epochs": 12, "limit_val_batches": 1.0}
    return fit(ppo(model_folder), tmp_path, data={**data, **memory}, trainer=trainer)


def learn_names(tmp_path, model_folder, **memory):
    """The returns of the last eight of sixteen rollouts of a task in which names recur for four rollouts."""
    data = {
        "env": "Names-v0",
        "agent": NamesAgent(),
        "num_envs": 32,
        "episodes_per_rollout": 192,
        "update_epochs": 3,
    }
    module = ppo(model_folder, entropy_coef=0.1)  # else it says one word to all names that it does not know
    curves = fit(module, tmp_path, data={**data, **memory}, trainer={"max_epochs": 16})
    return curves["rollout/return_mean"][-8:]


def test_a_window_of_turns_tells_the_word_shown_before(tmp_path, model_folder):
    """Chance is 1/3. The agent's words are the default ones: observation, answer and reward."""
    curves = learn_later(tmp_path, model_folder, working_memory=WorkingMemory(turns=1))
    assert curves["rollout/return_mean"][0] < 0.5
    assert curves["val_sampled/return_mean"][-1] > 0.8


def test_without_a_window_the_word_can_only_be_guessed(tmp_path, model_folder):
    """The control: 1/3 and 5 standard errors of sqrt(1/3 * 2/3 / 200) = 0.033 are 0.5."""
    assert learn_later(tmp_path, model_folder)["val_sampled/return_mean"][-1] < 0.5


def test_earlier_episodes_tell_the_answer_to_a_name(tmp_path, model_folder):
    """Of every four rollouts with the same names, the last know most: with one of four tries in the first
    found right, 0.80 of the names; in the first rollout with new ones it is chance again."""
    memory = EpisodicMemory(min_similarity=1, return_weight=1, half_life=None)
    returns = learn_names(tmp_path, model_folder, episodic_memory=memory)
    assert max(returns) > 0.62
    assert min(returns) < max(returns) - 0.2, "the names changed, and nothing else told"


def test_without_earlier_episodes_the_answer_can_only_be_guessed(tmp_path, model_folder):
    """The control: the highest of eight rollouts stays near 1/3, the standard error of one being 0.034, and
    what little is learned of 48 names in four rollouts."""
    assert max(learn_names(tmp_path, model_folder)) < 0.52
