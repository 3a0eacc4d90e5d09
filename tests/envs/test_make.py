"""Making environments: what is passed on, and what the errors say."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import ClipReward, DiscretizeAction, PassiveEnvChecker, TransformReward

from helpers import echo  # noqa: F401  (registers environments)
from lgym.envs import make_env
from lgym.envs.make import require_registered, time_limit
from lgym.types import ConfigError


class NeedsMore(gymnasium.Env):
    """An environment whose optional dependency is not there."""

    def __init__(self):
        raise gymnasium.error.DependencyNotInstalled("pip install gymnasium[more]")


class Endless(gymnasium.Env):
    """An environment that never ends, whatever it says."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, max_steps):
        self.max_steps = max_steps

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


@pytest.fixture
def needs_more():
    gymnasium.register("NeedsMore-v0", NeedsMore)
    yield "NeedsMore-v0"
    del gymnasium.registry["NeedsMore-v0"]


def steps_until_truncated(env, limit):
    """FrozenLake without slipping: going left in the first column stays there, so that only the time limit
    ends it."""
    env.reset(seed=0)
    return next((step for step in range(1, limit + 1) if env.step(0)[3]), None)


def test_env_kwargs_reach_the_environment():
    """Keyword arguments dropped on the way would train on the default environment."""
    env = make_env("FrozenLake-v1", {"map_name": "8x8"})
    assert env.observation_space.n == 64


@pytest.mark.parametrize(("max_episode_steps", "truncated_at"), [(3, 3), (None, 100), (-1, None)])
def test_max_episode_steps(max_episode_steps, truncated_at):
    """A limit not passed on, or `None` taken for no limit, changes how long episodes are."""
    env = make_env("FrozenLake-v1", {"is_slippery": False}, max_episode_steps)
    assert steps_until_truncated(env, limit=150) == truncated_at


@pytest.mark.parametrize(
    ("own", "truncated_at"),
    [
        (None, 1000),
        (20, 1000),
        (1500, 1500),
        (1500.0, 1500),
        (np.int64(1500), 1500),
        (np.inf, 1000),
        (np.nan, 1000),
        (-1, 1000),
        (True, 1000),
        (len, 1000),
    ],
)
def test_a_limit_of_the_environments_own_is_not_cut_short(own, truncated_at):
    """Catches a thousand steps where the environment itself ends its episodes later, as MiniGrid's large
    levels do. One that says so and does not ends too, and what is no number of steps is none."""
    gymnasium.register("Own-v0", Endless)
    try:
        env = make_env("Own-v0", {"max_steps": own})
    finally:
        del gymnasium.registry["Own-v0"]
    assert steps_until_truncated(env, limit=2000) == truncated_at
    assert (time_limit(env) or 1) >= 1


@pytest.mark.parametrize("limit", [0, -2])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit):
    """Gymnasium answers 0 with a bare assertion, which `python -O` leaves out."""
    with pytest.raises(ValueError, match=f"max_episode_steps={limit}"):
        make_env("FrozenLake-v1", None, limit)


def test_no_passive_checker():
    """Gymnasium's checker on every step costs time in each of many thousand turns."""
    env = make_env("Blackjack-v1", None, None)
    while isinstance(env, gymnasium.Wrapper):
        assert not isinstance(env, PassiveEnvChecker)
        env = env.env


@pytest.mark.parametrize(
    ("env_id", "close"),
    [("blackjak-v1", "Blackjack-v1"), ("CartPole-v9", "CartPole-v1"), ("Frozen Lake-v1", "FrozenLake-v1")],
)
def test_an_unknown_id_names_the_close_ones(env_id, close):
    """A typo in a YAML file should be found from the message alone."""
    with pytest.raises(ValueError, match="not a registered environment") as caught:
        make_env(env_id)
    message = str(caught.value)
    assert env_id in message
    assert f"Close to it: {close}" in message
    assert "package:Env-v0" in message


def test_an_id_close_to_nothing_still_says_the_way_out():
    """With no close match the message must not offer an empty list."""
    with pytest.raises(ValueError, match="package:Env-v0") as caught:
        make_env("qqqqqqqqqqqq-v0")
    assert "Close to it" not in str(caught.value)


def test_a_missing_package_is_named():
    """'No module named ...' out of the depths of Gymnasium does not say which environment asked for it."""
    with pytest.raises(
        ValueError, match=r"'no_such_package:Env-v0' needs a package .*No module named 'no_such_package'"
    ):
        make_env("no_such_package:Env-v0")


def test_a_missing_optional_dependency_is_named(needs_more):
    """The command that installs it, which Gymnasium knows, must survive in the message."""
    with pytest.raises(ValueError, match=r"NeedsMore-v0.*pip install gymnasium\[more\]"):
        make_env(needs_more)


def test_wrong_keyword_arguments_are_named():
    """A misspelt env_kwargs entry should be found from the message alone."""
    with pytest.raises(ValueError, match=r"Blackjack-v1.*'naturl': True"):
        make_env("Blackjack-v1", {"naturl": True})


def test_the_last_wrapper_is_outermost():
    """A reward clipped to 2 and then doubled is not one doubled and then clipped."""
    clip = partial(ClipReward, min_reward=-2, max_reward=2)
    double = partial(TransformReward, func=lambda reward: 2 * float(reward))
    env = make_env("CliffWalking-v1", wrappers=[clip, double])
    env.reset(seed=0)
    assert env.step(1)[1] == -4  # right of the start is the cliff, -100
    env = make_env("CliffWalking-v1", wrappers=[double, clip])
    env.reset(seed=0)
    assert env.step(1)[1] == -2


def test_a_wrapper_that_does_not_fit_is_named():
    """By its place in the list, with what Gymnasium says of the space."""
    with pytest.raises(
        ValueError, match=r"Wrapper 2 of 2 cannot be put round .*CartPole.*DiscretizeAction.*Box"
    ):
        make_env(
            "CartPole-v1", wrappers=[partial(ClipReward, max_reward=1), partial(DiscretizeAction, bins=3)]
        )
    with pytest.raises(ValueError, match="Wrapper 1 of 1 made None"):
        make_env("CartPole-v1", wrappers=[lambda env: None])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotImplementedError("no flat form"), "no flat form"),
        (gymnasium.error.DependencyNotInstalled("pip install opencv-python"), "pip install opencv-python"),
        (ModuleNotFoundError("No module named 'cv2'"), "No module named 'cv2'"),
        (AssertionError(), "AssertionError"),
    ],
    ids=["space", "package", "module", "without_words"],
)
def test_what_a_wrapper_cannot_do_is_said_with_its_name(error, reason):
    """Gymnasium's raise the first two for MiniGrid's missions in a row, and for pictures without OpenCV;
    other packages' and users' own the others."""

    def unfit(env):
        raise error

    with pytest.raises(ConfigError, match=f"Wrapper 1 of 1 cannot be put round .*CartPole.*: {reason}$"):
        make_env("CartPole-v1", wrappers=[unfit])


def test_ids_of_a_known_package_need_no_package_name(monkeypatch):
    """Nothing has imported the package that registers them."""
    monkeypatch.setattr("lgym.envs.make.REGISTERED_BY", {"Maze-": "no_such_mazes"})
    with pytest.raises(ValueError, match="'no_such_mazes:Maze-v3' needs a package.*no_such_mazes"):
        make_env("Maze-v3")


@pytest.mark.parametrize(
    ("env_id", "given", "limit"),
    [
        ("CliffWalking-v1", None, 1000),  # which has none of its own
        ("CliffWalking-v1", -1, None),
        ("CliffWalking-v1", 7, 7),
        ("MountainCarContinuous-v0", None, 999),  # its own
        ("Acrobot-v1", None, 500),
    ],
)
def test_every_environment_has_a_time_limit(env_id, given, limit):
    """Catches a policy that goes round in circles for ever, a limit over the environment's own, and one that
    stays where none is wanted."""
    env = make_env(env_id, None, given)
    assert env.spec.max_episode_steps == limit
    if env_id == "CliffWalking-v1":
        env.reset(seed=0)
        assert next((n for n in range(1, 1101) if env.step(0)[3]), None) == limit  # up ends nowhere


class Loose(gymnasium.Env):
    """An environment that returns what it is told to."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, first=(0, {}), result=(0, 0.0, False, False, {})):
        self.first, self.result = first, result

    def reset(self, *, seed=None, options=None):
        return self.first

    def step(self, action):
        return self.result


@pytest.fixture
def loose():
    gymnasium.register("Loose-v0", Loose)
    yield "Loose-v0"
    del gymnasium.registry["Loose-v0"]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"first": np.zeros(2)}, r"reset returned array\(\[0., 0.\]\); return \(observation, info\)"),
        ({"first": ("a", "b")}, r"reset returned \('a', 'b'\)"),
        (
            {"result": (0, 1.0, True, {})},
            r"step returned \(0, 1.0, True, {}\); return \(observation, reward,",
        ),
        ({"result": (0, np.ones(2), True, False, {})}, "the reward array.*not one number"),
    ],
)
def test_an_environment_that_returns_something_else_is_named(loose, returned, said):
    """Catches Gym's old API, which ends in an error of whatever unpacks it."""
    env = make_env(loose, returned)
    with pytest.raises(TypeError, match=said):
        env.step(env.reset(seed=0)[0])


@pytest.mark.parametrize("reward", [np.array([-0.5]), np.float32(-0.5), -0.5])
@pytest.mark.parametrize("frame_skip", [1, 2])
def test_a_reward_may_be_an_array_of_one_number(loose, reward, frame_skip):
    """As it becomes where it is computed from a vector; NumPy makes no float of it."""
    env = make_env(loose, {"result": (0, reward, True, False, {})}, frame_skip=frame_skip)
    env.reset(seed=0)
    assert env.step(0)[1] == -0.5


def test_a_limit_that_an_environment_sets_at_its_reset_is_kept(loose):
    """Catches a level of BabyAI, whose limit follows its mission, that is cut at 1,000 steps."""
    env = make_env(loose)
    env.unwrapped.max_steps = 1003
    env.reset(seed=0)
    assert next(n for n in range(1, 1101) if env.step(0)[3]) == 1003


def test_the_time_limit_counts_steps_inside_a_frame_skip():
    """Catches a limit of 1,000 turns, which are 4,000 steps."""
    env = make_env("CliffWalking-v1", frame_skip=4)
    env.reset(seed=0)
    assert next(n for n in range(1, 1101) if env.step(0)[3]) == 250


@pytest.mark.parametrize(
    ("env_id", "settings", "expected"),
    [
        ("CartPole-v1", {}, 500),  # registered with it
        ("CartPole-v1", {"max_episode_steps": 200}, 200),
        ("CartPole-v1", {"max_episode_steps": 200, "frame_skip": 8}, 25),  # in turns
        ("CartPole-v1", {"max_episode_steps": -1}, None),
        ("CliffWalking-v1", {}, None),  # 1,000 are everybody's
        ("CliffWalking-v1", {"max_episode_steps": 1000}, 1000),
    ],
)
def test_the_time_limit_of_an_environment(env_id, settings, expected):
    """Catches a registered limit that is taken for none, as `env.unwrapped.spec` has it: the 999 steps of
    MountainCarContinuous became 200."""
    assert time_limit(make_env(env_id, **settings)) == expected


def test_a_time_limit_of_the_environments_own():
    """MiniGrid has no wrapper for it."""
    env = make_env("Counting-v0")
    env.unwrapped.max_steps = 64
    assert time_limit(env) == 64


def test_an_id_is_refused_without_making_the_environment():
    """Catches one that cannot be made without `env_kwargs`, refused as if nobody knew it."""
    require_registered("lgym/ReasoningGym-v0")
    require_registered("gymnasium:CartPole-v1")
    with pytest.raises(ConfigError, match="'FrozenLake-v7' is not a registered environment.*FrozenLake-v1"):
        require_registered("FrozenLake-v7")
    with pytest.raises(ConfigError, match="'no_such_package:Maze-v0' needs a package.*no_such_package"):
        require_registered("no_such_package:Maze-v0")
    with pytest.raises(ConfigError, match="'Frozen Lake' is not a registered environment"):
        require_registered("Frozen Lake")
