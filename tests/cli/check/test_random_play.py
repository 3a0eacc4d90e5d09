"""Play without a model: random actions, distinct prompts, and the test of the reset seed."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text

from helpers import spaces
from helpers.echo import EchoAgent, EchoEnv
from lgym.agents import GeneralAgent
from lgym.data.exploration_choice import change_per_turn
from lgym.data.random_play import RandomPlay, play_at_random, score, seed_fault


class LuckyEnv(EchoEnv):
    """Draws from a generator that no seed reaches."""

    unseeded = np.random.default_rng(1)

    def _show(self) -> int:
        self._shown = int(self.unseeded.integers(3))
        return self._shown


class Drift(gymnasium.Env):
    """Writes each observation into the same array."""

    observation_space, action_space = Box(-99, 99, (2,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state = np.zeros(2, np.float32)
        return self._state, {}

    def step(self, action):
        self._state += (2 * action - 1, 1)
        return self._state, float(action), bool(self._state[1] == 20), False, {}


def test_observations_that_change_in_place_are_kept_as_they_were():
    """Catches one array seen many times: nothing seemed to change in a turn, and actions were repeated."""
    agent = GeneralAgent()
    agent.bind(Drift())
    play = play_at_random(Drift, agent, history=0, episodes=12, turns=240, seed=0)
    assert len({observation.tobytes() for observation in play.observations}) > 12
    assert change_per_turn(play) > 0.1


def test_how_the_seed_is_tried():
    """An environment that carries something over is caught though each alone is deterministic."""

    class Counting(EchoEnv):
        resets = 0

        def reset(self, *, seed=None, options=None):
            self.resets += 1
            observation, info = super().reset(seed=seed)
            return (observation if self.resets < 4 else 0), info

    assert seed_fault(lambda: EchoEnv(turns=5), EchoAgent(), range(3)) is None
    assert "showed" in seed_fault(lambda: Counting(turns=5), EchoAgent(), range(3))
    LuckyEnv.unseeded = np.random.default_rng(1)  # other tests have drawn from it
    assert "reset with seed" in seed_fault(LuckyEnv, EchoAgent(), range(3))


@pytest.mark.parametrize(
    ("actions", "names", "tries"), [(Text(5), (), False), (Text(5), ("a",), True), (Discrete(2), (), True)]
)
def test_random_characters_are_no_tries_at_a_game(actions, names, tries):
    """Commands to choose from are, and numbers of actions."""
    agent, env = GeneralAgent(), spaces.env(action_space=actions)
    agent.bind(env)
    if names:
        agent.candidates = lambda observation, info: names
    assert play_at_random(lambda: env, agent, history=0, episodes=1, turns=1, seed=0).tries == tries


class GuessEnv(gymnasium.Env):
    """Pays 1 for guessing a coin that falls afterwards."""

    observation_space, action_space = gymnasium.spaces.Discrete(1), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, float(action == int(self.np_random.integers(2))), True, False, {}


class SilentAgent(EchoAgent):
    """Offers nothing to choose from."""

    actions = ()


def test_random_play_does_not_know_the_dice():
    """Catches actions drawn from the number that the environment is reset with: they would guess every coin.
    400 coins, 200 expected, 10 their standard error."""
    play = play_at_random(GuessEnv, SilentAgent(), history=0, episodes=400, turns=0, seed=0)
    assert 160 <= sum(play.returns) <= 240


def test_random_play_counts_prompts_with_their_history():
    """Three words alone; with a turn before, 3 x 3 answers x 3 words and the 3 first turns; whole episodes
    more."""
    env = {"make_env": lambda: EchoEnv(turns=3), "agent": EchoAgent(), "episodes": 300, "turns": 0, "seed": 0}
    alone, one, whole = (play_at_random(**env, history=history) for history in (0, 1, "full"))
    assert alone.lengths == [3] * 300
    assert alone.distinct[-1] == 3
    assert one.distinct[-1] == 3 + 3 * 3 * 3
    assert 27 + 3 < whole.distinct[-1] <= 3 + 3 * 3 * 3 + 27 * 9
    assert (
        len(play_at_random(**env | {"episodes": 1, "turns": 100}, history=0).distinct) == 102
    )  # whole episodes


def test_distinct_prompts_of_a_longer_play():
    """From 4 to 8 in the second half doubles with the turns; from 8 to 8 stays."""
    assert RandomPlay(distinct=[1, 2, 3, 4, 5, 6, 7, 8]).distinct_after(32) == pytest.approx(32.0)
    assert RandomPlay(distinct=[5, 6, 7, 8, 8, 8, 8, 8]).distinct_after(32) == pytest.approx(8.0)
    assert RandomPlay(distinct=[1, 2, 3, 4]).distinct_after(2) == 2.0


def test_a_score_has_its_interval():
    """s = 1, 1.96 / sqrt(4) = 0.98; infinite for one episode."""
    of_four = score([0.0, 0.0, 2.0, 2.0])
    assert of_four["mean"] == 1.0
    assert of_four["ci95"] == pytest.approx(1.96 * (4 / 3) ** 0.5 / 2)
    assert score([3.0])["ci95"] == float("inf")
    assert score([]) is None
