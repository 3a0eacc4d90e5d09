"""What random play decides in real games, what wins over it, and what a run goes on with."""

from __future__ import annotations

import io

import gymnasium
import pytest
import torch

from helpers import spaces  # noqa: F401  (registers environments)
from helpers.echo import EchoAgent
from helpers.learners import RecordingLearner, attach
from helpers.prompts import make_prompt, response_batch
from helpers.scripted import text_response
from helpers.transitions import chain
from lgym.agents import CliffWalkingAgent
from lgym.data import EveryAction, ExplorationBonus, GraphReplayBuffer, ReplayBuffer, RolloutDataModule
from lgym.data.measuring import DEFAULTS, replay_choices
from lgym.data.random_play import RandomPlay
from lgym.data.sizing import default_envs
from lgym.envs.frame_skip import FrameSkip

SIZE = {"num_envs", "turns_per_rollout", "update_epochs", "prompts_per_pass", "num_minibatches"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Less play, and none that is cut by the clock."""
    monkeypatch.setattr("lgym.data.measuring.MEASURED_TURNS", 600)
    monkeypatch.setattr("lgym.data.measuring.MEASURED_EPISODES", 12)
    monkeypatch.setattr("lgym.data.measuring.MEASURED_SECONDS", 600.0)


def module(env: str, learner=None, **settings) -> RolloutDataModule:
    learner = learner or RecordingLearner(batch=response_batch([make_prompt("")], [0], [text_response("")]))
    return attach(RolloutDataModule(env=env, **settings), learner)


def chosen(data: RolloutDataModule) -> dict[str, object]:
    return {choice.name: choice.value for choice in data.choose_settings(data.learner, torch.device("cpu"))}


def test_an_endless_cliff_gets_a_limit_and_a_bonus():
    """Catches 1,000 turns of an episode that falls from the cliff again and again, and a goal that is never
    found."""
    data = module("CliffWalking-v1")
    found = chosen(data)
    assert found.keys() == SIZE | {"max_episode_steps", "exploration_bonus"}
    assert data.max_episode_steps == found["max_episode_steps"] == 200
    assert isinstance(data.exploration_bonus, ExplorationBonus)
    assert data.demonstrations is None  # random play falls from the cliff: there is much to lose
    reference = data.agents["validate"].reference_returns()
    agent = CliffWalkingAgent()
    agent.bind(gymnasium.make("CliffWalking-v1", max_episode_steps=200))
    assert reference == agent.reference_returns()
    env = data.make_env()
    env.reset(seed=0)
    assert next(step for step in range(1, 2000) if env.step(0)[3]) == 200  # up, where nothing ends it


def test_a_car_in_a_valley_gets_a_frame_skip():
    """Catches an action whose effect is too small to see in a turn: random play gets -200 in all episodes."""
    data = module("MountainCar-v0")
    found = chosen(data)
    assert "max_episode_steps" not in found
    assert data.frame_skip == found["frame_skip"] in (2, 4, 8, 16)
    assert isinstance(env := data.make_env(), FrameSkip)
    assert env.frame_skip == data.frame_skip


def test_blackjack_needs_nothing():
    """Catches a bonus, a limit or a frame skip for a game whose random episodes differ."""
    data = module("Blackjack-v1")
    assert chosen(data).keys() == SIZE
    assert (data.frame_skip, data.exploration_bonus, data.max_episode_steps) == (1, None, None)


@pytest.mark.parametrize(
    "given",
    [
        {"exploration_bonus": None},
        {"demonstrations": None},
        {"max_episode_steps": 50},
        {"num_envs": 24},
        {"update_epochs": 3},
        {"prompts_per_pass": 7},
        {"num_minibatches": 5},
        {"frame_skip": 1},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_setting_that_is_given_wins(given):
    """Catches a choice over what the user set, `null` for no bonus included; turns fit the environments."""
    ((name, value),) = given.items()
    data = module("CliffWalking-v1", **given)
    assert name not in chosen(data)
    assert getattr(data, name) == value
    assert data.turns_per_rollout % data.num_envs == 0


def test_a_minibatch_size_that_is_given_wins():
    """Catches a number of minibatches beside it."""
    data = module("CliffWalking-v1", minibatch_size=5)
    assert "num_minibatches" not in chosen(data)
    assert data.prompts_per_minibatch(100) == 5
    counted = module("CliffWalking-v1", num_minibatches=3)
    chosen(counted)
    assert counted.prompts_per_minibatch(100) == 34


@pytest.mark.parametrize("size", [{"turns_per_rollout": 60}, {"episodes_per_rollout": 8}])
def test_a_size_that_is_given_decides_everything(size, monkeypatch):
    """Catches random play, and a bonus, in a run whose every setting stood in a YAML of its own."""
    monkeypatch.setattr("lgym.data.resolved_config.measured_settings", None)  # which must not be asked
    data = module("CliffWalking-v1", **size)
    assert chosen(data) == {}
    found = (data.num_envs, data.update_epochs, data.prompts_per_pass, data.num_minibatches, data.frame_skip)
    assert found == (15 if "turns_per_rollout" in size else 16, 4, None, None, 1)
    assert data.prompts_per_minibatch(100) == 32
    assert (data.exploration_bonus, data.max_episode_steps) == (None, None)
    single = module("CliffWalking-v1", RecordingLearner(single_pass=True), **size)
    chosen(single)
    assert single.update_epochs == 1
    given = module("CliffWalking-v1", RecordingLearner(single_pass=True), update_epochs=2, **size)
    chosen(given)
    assert given.update_epochs == 2


def test_numbers_are_rounded_where_there_are_too_many_texts():
    """Catches texts of which each is met once, where nothing is learned from one about another; and a
    resolution that does not reach the agent's words."""
    data = module("Robot-v0", target_rollout_seconds=1.0)
    found = chosen(data)
    assert found["resolution"].keys() == {"robot 0", "robot 1"}
    coarse = {data.agent.format_observation({"robot": [x / 1000, 0.0], "door": 0}) for x in range(100)}
    finer = {
        module("Robot-v0").agent.format_observation({"robot": [x / 1000, 0.0], "door": 0}) for x in range(100)
    }
    assert len(coarse) < len(finer)
    assert "resolution" not in chosen(module("Robot-v0", target_rollout_seconds=6000.0))


def test_what_is_decided_is_said(capsys):
    """Catches settings that change in silence: a line each when training begins, and none for a test."""
    data = module("Blackjack-v1")
    data.setup("test")
    assert "data." not in capsys.readouterr().out
    data.setup("fit")
    said = capsys.readouterr().out
    for name in SIZE:
        assert f"data.{name}: {getattr(data, name)}" in said


def saved(data: RolloutDataModule) -> dict[str, object]:
    """Its state after a rollout, as a checkpoint holds it."""
    list(data.train_dataloader())
    file = io.BytesIO()
    torch.save(data.state_dict(), file)
    data.teardown("fit")
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_resumed_run_keeps_what_it_began_with():
    """Catches a bonus, a limit or a size that is measured anew: a slower machine may decide otherwise. A
    setting that is given now wins."""
    settings = {"env": "CliffWalking-v1", "target_rollout_seconds": 0.1}
    data = module(**settings)
    assert chosen(data).keys() == SIZE | {"max_episode_steps", "exploration_bonus"}
    state = saved(data)
    for resumed in (module(**settings), module("CliffWalking-v1", target_rollout_seconds=9.0)):
        chosen(resumed)
        resumed.load_state_dict(state)
        for name in SIZE | {"max_episode_steps", "frame_skip"}:
            assert getattr(resumed, name) == getattr(data, name), name
        assert resumed.exploration_bonus.state_dict() == data.exploration_bonus.state_dict()
        assert saved(resumed)["measured"] == state["measured"]
    given = module(**settings, num_envs=2, exploration_bonus=None)
    given.load_state_dict(state)
    assert (given.num_envs, given.exploration_bonus) == (2, None)
    assert given.max_episode_steps == 200


def test_a_resumed_run_keeps_its_start_with_even_odds():
    """Catches demonstrations that are forgotten, and some in a run that began without."""
    settings = {"env": "FrozenLake-v1", "target_rollout_seconds": 0.1}
    data, resumed, older = (module(**settings) for _ in range(3))
    for each in (data, resumed, older):
        assert list(map(type, chosen(each)["demonstrations"])) == [EveryAction]
    state = saved(data)
    resumed.load_state_dict(state)
    assert list(map(type, resumed.demonstrations)) == [EveryAction]
    older.load_state_dict({**state, "measured": {"exploration_bonus": True}})
    assert older.demonstrations is None


def test_an_evaluation_plays_as_the_run_did():
    """Catches a test of a checkpoint, which measures nothing, in the plain game: with other texts, or
    another frame skip."""
    robot = module("Robot-v0", target_rollout_seconds=1.0)
    resolution = chosen(robot)["resolution"]
    state = saved(robot)
    tested = module("Robot-v0")
    tested.setup("test")
    tested.load_state_dict(state)
    for agent in (tested.agent, tested.agents["test"], tested.agents["validate"]):
        assert agent.observation_settings.resolution == resolution
    car = module("MountainCar-v0")
    chosen(car)
    tested = module("MountainCar-v0")
    tested.load_state_dict({"ranks": [], "rollouts": 0, "measured": {"frame_skip": car.frame_skip}})
    assert tested.env_maker("test").keywords["frame_skip"] == car.frame_skip > 1


def test_what_was_not_decided_then_is_not_decided_now():
    """Catches a bonus that a resumed run gets because random play ended elsewhere this time."""
    data = module("CliffWalking-v1")
    chosen(data)
    assert data.exploration_bonus is not None
    data.load_state_dict({"ranks": [], "rollouts": 0, "measured": {"num_envs": 8, "turns_per_rollout": 512}})
    assert (data.exploration_bonus, data.max_episode_steps) == (None, None)
    assert (data.num_envs, data.turns_per_rollout) == (8, 512)
    assert data.agent.reference_returns() == module("CliffWalking-v1").agent.reference_returns()
    data.load_state_dict({"ranks": [], "rollouts": 0, "measured": {"turns_per_rollout": 512}})
    assert data.num_envs == default_envs(512)  # the run began with a number that was given


def test_the_defaults_are_those_of_a_given_size():
    """Catches a setting that random play decides and that has no value where it is not asked."""
    data = RolloutDataModule(env="Echo-v0", agent=EchoAgent(), turns_per_rollout=64)
    for name in set(DEFAULTS) - {"num_envs", "turns_per_rollout"}:
        assert getattr(data, name) == DEFAULTS[name]


def test_values_are_carried_on_where_prompts_come_again():
    """Also after a restart; where each prompt is new, transitions are learned from one by one."""
    learner = RecordingLearner(batch=chain(0, 3), uses_replay=True, open_settings=frozenset({"replay"}))
    data = module("FrozenLake-v1", learner)
    assert type(chosen(data)["replay"]) is type(data.replay) is GraphReplayBuffer
    state = saved(data)
    resumed = module("FrozenLake-v1", learner)
    resumed.load_state_dict(state)
    assert type(resumed.replay) is GraphReplayBuffer
    vast = module("Robot-v0", learner)
    assert "replay" not in chosen(vast)
    vast.load_state_dict({"ranks": [], "rollouts": 0, "measured": {}})
    assert type(vast.replay) is ReplayBuffer


def test_a_buffer_that_is_given_wins():
    given = ReplayBuffer()
    learner = RecordingLearner(uses_replay=True, open_settings=frozenset({"replay"}))
    data = module("FrozenLake-v1", learner, replay=given)
    assert "replay" not in chosen(data)
    assert data.replay is given


def test_prompts_with_another_history_each_do_not_come_again():
    """What a prompt asks has its history in it, though the observation is the same."""
    questions = {("a", ("x", "y")): None}
    assert replay_choices(RandomPlay(distinct=list(range(1, 101)), questions=questions)) == []
    assert len(replay_choices(RandomPlay(distinct=[1] * 100, questions=questions))) == 1
