"""The data side of a run: which environment each stage plays."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.echo import EchoAgent
from helpers.learners import RecordingLearner, attach
from helpers.prompts import make_prompt, response_batch
from helpers.scripted import CandidateScorer, text_response
from lgym.agents import FrozenLakeAgent
from lgym.data import ReplayBuffer, RolloutDataModule
from lgym.data.imitation.demonstrations import Demonstration
from lgym.memory import WorkingMemory
from lgym.policies.distribution_cache import choice_response


def echo_returns(**kwargs):
    """The returns of eight episodes of training and of evaluation."""
    data = RolloutDataModule(
        env="Echo-v0", agent=EchoAgent(), episodes_per_rollout=8, num_envs=4, eval_episodes=8, **kwargs
    )
    attach(
        data, learner := RecordingLearner(batch=response_batch([make_prompt("")], [0], [text_response("")]))
    )
    list(data.train_dataloader())
    [flight] = data.val_dataloader()[1]
    return learner.rollouts[0].episode_returns, flight.batch


def test_evaluation_may_play_another_environment():
    """Echo pays 0 or 1 a turn; with `sign=-1`, 0 or -1. Of two settings, the one that is not overridden
    stays."""
    trained, evaluated = echo_returns(env_kwargs={"turns": 2, "sign": 1}, eval_env_kwargs={"sign": -1})
    assert trained.min() >= 0 < trained.max()
    assert evaluated.returns.max() <= 0 > evaluated.returns.min()
    assert evaluated.lengths.tolist() == [2.0] * 8


def test_evaluation_plays_the_same_environment_by_default():
    trained, evaluated = echo_returns(env_kwargs={"sign": -1})
    assert trained.min() < 0
    assert evaluated.returns.min() < 0


def lakes(learner=None, **kwargs):
    """A data module for Frozen Lake in its run, without a model."""
    data = RolloutDataModule(
        env="FrozenLake-v1", agent=FrozenLakeAgent(), episodes_per_rollout=1, num_envs=1, **kwargs
    )
    return attach(data, learner or RecordingLearner())


def demonstrated_by(source, **kwargs):
    """The same, ready to imitate what a source demonstrates."""
    policy = CandidateScorer()
    policy.demonstrated = lambda prompt, text, token_ids, choice: choice_response(prompt, choice)
    data = lakes(RecordingLearner(policy, imitation_weight=1.0), demonstrations=[source], **kwargs)
    data.setup("fit")
    return data


def first_observation(data, stage):
    """The text of a stage's first observation."""
    [runner] = data.make_collector(stage).runners
    runner.reset(0)
    return runner.prompt.observation_text


def test_evaluation_is_worded_by_its_own_environment():
    """The goal of the 4x4 lake is 3 down and 3 right; of the 8x8 lake 7 and 7, in other words of slippery ice
    too."""
    small, large = {"map_name": "4x4", "is_slippery": False}, {"map_name": "8x8", "is_slippery": True}
    data = lakes(env_kwargs=small, eval_env_kwargs=large)
    assert "Goal: 3 down and 3 right" in first_observation(data, "fit")
    for stage in ("validate", "test", "predict"):
        assert "Goal: 7 down and 7 right" in first_observation(data, stage)
        assert "slippery" in data.prompt_builder(stage).render((), "")
    assert "slippery" not in data.prompt_builder("fit").render((), "")
    same = lakes(env_kwargs=small)
    assert same.prompt_builder("test") is same.prompt_builder("fit")


def test_experts_may_demonstrate_in_another_environment():
    """What differs in evaluation is none of theirs; without their own they play that of training."""

    class Lookout:
        def demonstrations(self, agent, make_env):
            return [Demonstration(agent.format_observation(0), str(make_env().unwrapped.desc.shape))]

    small, large = {"map_name": "4x4"}, {"map_name": "8x8"}
    for kwargs, size in (({}, 4), ({"demonstration_env_kwargs": large}, 8)):
        data = RolloutDataModule(
            env="FrozenLake-v1",
            agent=FrozenLakeAgent(),
            episodes_per_rollout=1,
            num_envs=1,
            env_kwargs=small,
            demonstrations=[Lookout()],
            **{"eval_env_kwargs": large if size == 4 else None, **kwargs},
        )
        attach(data, RecordingLearner(imitation_weight=1.0)).setup("fit")
        assert data._demonstrated[0].response_text == f"({size}, {size})"


def test_demonstrations_are_shown_with_the_working_memory():
    """As play shows it, and of their own episode."""

    class Walk:
        def demonstrations(self, agent, make_env):
            return [Demonstration("a cell", name, begins=name == "down") for name in ("down", "right")]

    data = demonstrated_by(Walk(), working_memory=WorkingMemory())
    batch = data._sft_sampler().sample(np.random.default_rng(0))
    texts = sorted(prompt.observation_text for prompt in batch.prompts)
    assert texts == ["This episode:\na cell -> down (+0)\nNow:\na cell", "a cell"]


def test_demonstrations_are_made_with_the_settings_that_the_run_began_with():
    """They were made before a checkpoint said what these are."""

    class Clock:
        def demonstrations(self, agent, make_env):
            return [Demonstration(f"limit {make_env.keywords['max_episode_steps']}", "down")]

    data = demonstrated_by(Clock())
    assert data._sft_sampler().demonstrations[0].observation_text == "limit None"
    data.load_state_dict({"ranks": [], "rollouts": 1, "measured": {"max_episode_steps": 7}})
    assert data._sft_sampler().demonstrations[0].observation_text == "limit 7"


@pytest.mark.parametrize("name", ["update_epochs", "minibatch_size"])
def test_passes_over_a_rollout_are_refused_where_replay_is_learned_from(name):
    data = attach(
        RolloutDataModule(env="Echo-v0", agent=EchoAgent(), **{name: 2}), RecordingLearner(uses_replay=True)
    )
    with pytest.raises(ValueError, match=f"data.{name} is of passes over a rollout"):
        data.setup("fit")


class GreenWord:
    """One demonstration."""

    def demonstrations(self, agent, make_env):
        return [Demonstration("green", "green")]


def test_demonstrations_of_no_turn_are_refused():
    """Whole rollouts would learn nothing."""

    class Nothing:
        def demonstrations(self, agent, make_env):
            return []

    data = RolloutDataModule(
        env="Echo-v0", agent=EchoAgent(), episodes_per_rollout=8, demonstrations=[Nothing()]
    )
    with pytest.raises(ValueError, match=r"data.demonstrations \(Nothing\) has no turns to imitate"):
        attach(data, RecordingLearner(sft_rollouts=1)).setup("fit")


def imitating(learner, **settings) -> RolloutDataModule:
    """Set up with one demonstration."""
    data = RolloutDataModule(
        env="Echo-v0", agent=EchoAgent(), episodes_per_rollout=8, demonstrations=[GreenWord()], **settings
    )
    attach(data, learner).setup("fit")
    return data


def test_passes_of_imitation_are_set_where_replay_is_learned_from():
    """They may be as many as `update_epochs` says, whatever the rewards are learned from."""
    learner = RecordingLearner(uses_replay=True, sft_rollouts=1)
    assert imitating(learner, update_epochs=6).update_epochs == 6


def test_short_passes_are_refused_where_none_is_of_imitation_alone():
    """The setting would have no effect."""
    with pytest.raises(ValueError, match="sft_turns_per_pass is 100, and no rollout .* set sft.rollouts"):
        imitating(RecordingLearner(imitation_weight=1.0), sft_turns_per_pass=100)


def test_a_replay_buffer_that_nothing_learns_from_is_refused():
    data = attach(
        RolloutDataModule(env="Echo-v0", agent=EchoAgent(), replay=ReplayBuffer()), RecordingLearner()
    )
    with pytest.raises(ValueError, match="data.replay is set"):
        data.setup("fit")
