"""The scripted experts play as well as they say."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from lgym.agents import GeneralAgent
from lgym.agents.experts import (
    BabyAIBot,
    BalancePole,
    BasicStrategy,
    Bisection,
    DealersRule,
    GuessAmongLeft,
    SokobanSolver,
    Uniform,
    Walkthrough,
)
from lgym.data import ExpertDemonstrations
from lgym.envs import blackjack, make_env
from lgym.envs.guess_number import reference_returns
from lgym.envs.sokoban import optimal_return
from lgym.types import ConfigError


def play(env_id, expert, seed, **env_kwargs):
    env = gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
    observation, info = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(expert.act(observation, info))
        total += reward
        over = terminated or truncated
    return total


def test_basic_strategy_is_the_optimal_policy():
    """In all 280 states."""
    actions = [BasicStrategy().act(state, {}) for state in blackjack.states()]
    assert blackjack.agreement(actions) == 1.0


@pytest.mark.parametrize(
    ("state", "action"),
    [((16, 10, 0), 1), ((16, 6, 0), 0), ((18, 9, 1), 1), ((18, 8, 1), 0), ((12, 4, 0), 0), ((12, 3, 0), 1)],
)
def test_basic_strategy_on_hands_that_every_chart_has(state, action):
    """Hit 16 against a ten and soft 18 against a nine; stay on 12 against a four."""
    assert BasicStrategy().act(state, {}) == action


def test_basic_strategy_takes_what_the_environment_gives():
    """Numbers of numpy, and a hand played to its end."""
    assert BasicStrategy().act((np.int64(16), np.int64(10), np.int64(0)), {}) == 1
    assert play("Blackjack-v1", BasicStrategy(), seed=0) in (-1.0, 0.0, 1.0)


@pytest.mark.parametrize("seed", range(10))
def test_the_pole_stays_up(seed):
    """For the 500 steps that the environment lasts."""
    assert play("CartPole-v1", BalancePole(), seed) == 500.0


def test_uniform_favors_no_action():
    expert = Uniform(3)
    counts = np.bincount([expert.act(None, {}) for _ in range(3000)])
    assert counts.min() > 900
    assert [Uniform(2, seed=s).act(None, {}) for s in range(20)] != [0] * 20


def test_random_guesses_find_a_number_as_often_as_they_should():
    """Catches guesses that forget the hints: of 1,025 numbers they would find one in a hundred."""
    expert = GuessAmongLeft()
    found = np.mean([play("lgym/GuessNumber-v0", expert, seed) for seed in range(500)])
    assert found == pytest.approx(reference_returns(1025, 10)["random"], abs=0.07)  # 3.3 standard errors


def test_bisection_finds_nearly_every_number():
    """All but two of 1,025, which would take an eleventh guess."""
    found = [play("lgym/GuessNumber-v0", Bisection(), seed) for seed in range(200)]
    assert np.mean(found) >= 0.98
    assert play("lgym/GuessNumber-v0", Bisection(), 0, lowest=-8, highest=-2, guesses=3) == 1.0


def test_the_dealers_rule_hits_below_17():
    actions = {state: DealersRule().act(state, {}) for state in blackjack.states()}
    assert all(action == (player_sum < 17) for (player_sum, _, _), action in actions.items())


def test_the_dealers_rule_is_disturbed_as_often_as_it_says():
    """Half of its actions are drawn, half of these against the rule: 1 in 4, of 4,000 with a standard error
    of 0.007."""
    expert = DealersRule(noise=0.5)
    against = sum(expert.act((20, 5, 0), {}) for _ in range(4000)) / 4000
    assert against == pytest.approx(0.25, abs=0.03)
    with pytest.raises(ValueError, match="noise is 2"):
        DealersRule(noise=2)


def test_a_walkthrough_takes_the_next_command_that_wins():
    assert Walkthrough().act("", {"policy_commands": ["go east", "open box"]}) == "go east"
    assert Walkthrough().act("", {"policy_commands": []}) is None, "the game is lost"
    with pytest.raises(ValueError, match="the info has none: take an environment that tells"):
        Walkthrough().act("", {})


@pytest.mark.parametrize("level", ["BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0", "BabyAI-PutNextLocal-v0"])
def test_the_bot_fulfills_missions(level):
    """Each of them, and not by chance: random play has next to none."""
    pytest.importorskip("minigrid")
    source = ExpertDemonstrations(BabyAIBot(), episodes=20, min_return=0.3)
    env = make_env(level)
    agent = GeneralAgent()
    agent.bind(env)
    returns = [source._play(env, agent, seed)[0] for seed in range(20)]
    env.close()
    assert min(returns) > 0.3
    turns = source.demonstrations(agent, lambda: make_env(level))
    assert {turn.response_text for turn in turns} <= set(agent.actions)
    assert all(turn.observation_text.startswith("Mission: ") for turn in turns)


def test_the_bot_fulfills_missions_in_spite_of_noise():
    """Told what was played, it plans on from there; the episode ends where a box was opened, and vanished."""
    pytest.importorskip("minigrid")
    env = make_env("BabyAI-PickupLoc-v0")
    agent = GeneralAgent()
    agent.bind(env)
    returns = [ExpertDemonstrations(BabyAIBot(), noise=0.25)._play(env, agent, seed)[0] for seed in range(40)]
    env.close()
    assert sum(value > 0.3 for value in returns) >= 36


def test_the_bot_sees_no_way_on_where_its_planner_fails_or_is_done():
    """An assertion of minigrid's ended the run of a model that had played something odd."""
    pytest.importorskip("minigrid")
    bot = BabyAIBot()
    env = make_env("BabyAI-GoToLocal-v0")
    env.reset(seed=0)
    bot.begin(env)

    def plan(*_):
        raise AssertionError

    done = bot._planner.mission.unwrapped.actions.done
    for replan, answer in ((plan, None), (lambda _: done, None), (lambda _: 1, 1)):
        bot._planner.replan = replan
        assert bot.act({}, {}) == answer


def test_the_bot_plans_in_no_other_world():
    pytest.importorskip("minigrid")
    with pytest.raises(ValueError, match="CartPoleEnv is none: take an id that begins with BabyAI-"):
        BabyAIBot().begin(gymnasium.make("CartPole-v1"))


def test_the_solver_wins_every_level_on_the_shortest_way():
    """Its mean return is the reference of the levels that it plays."""
    env = make_env("lgym/Sokoban-v0", {"levels": 1})
    solver, total, over = SokobanSolver(), 0.0, False
    observation, info = env.reset(seed=0)
    solver.begin(env)
    while not over:
        observation, reward, over, _, info = env.step(solver.act(observation, info))
        total += reward
    assert info["success"]
    assert total == pytest.approx(optimal_return(env.unwrapped))
    with pytest.raises(ConfigError, match=r"solves levels of lgym/Sokoban-v0, and CartPoleEnv is none"):
        SokobanSolver().begin(gymnasium.make("CartPole-v1"))


def test_the_solver_goes_on_from_where_noise_has_led():
    """It wins what can still be won, and has no answer where the box is stuck."""
    agent = GeneralAgent()
    env = make_env("lgym/Sokoban-v0")
    agent.bind(env)
    noisy, clean = ExpertDemonstrations(SokobanSolver(), noise=0.3), ExpertDemonstrations(SokobanSolver())
    won, stuck = 0, 0
    for seed in range(40):
        value, turns = noisy._play(env, agent, seed)
        best, shortest = clean._play(env, agent, seed)
        assert value <= best
        won += value > 0
        stuck += value < 0
        assert value < 0 or len(turns) >= len(shortest)
    assert won >= 20
    assert won + stuck == 40
    assert stuck > 0
