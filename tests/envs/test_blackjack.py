"""The exact Blackjack solver, against hand arithmetic, Gymnasium's own rules and the played environment."""

from fractions import Fraction
from functools import cache

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.blackjack import cmp, deck, is_bust, is_natural, score, sum_hand, usable_ace

from lgym.agents import BlackjackAgent
from lgym.envs import blackjack, make_env

STATES = blackjack.states()
INDEX = {state: number for number, state in enumerate(STATES)}
BELOW_17 = np.array([total < 17 for total, _, _ in STATES], dtype=float)
MIXED = np.random.default_rng(0).random(280)
PAYS_NATURALS = {"natural": True, "sab": False}
POLICIES = {
    "stay": np.zeros(280),
    "hit": np.ones(280),
    "random": np.full(280, 0.5),
    "below 17": BELOW_17,
    "mixed": MIXED,
}


@pytest.fixture(params=POLICIES.values(), ids=POLICIES.keys())
def policy(request) -> np.ndarray:
    return request.param


def hand_of(total: int, has_ace: bool) -> list[int]:
    """Some cards of that plain sum: Gymnasium's rules look only at the sum and at whether there is an ace."""
    return [1, total - 1] if has_ace else [total]


@cache
def dealer_scores(total: int, has_ace: bool) -> dict[int, Fraction]:
    hand = hand_of(total, has_ace)
    if sum_hand(hand) >= 17:
        return {score(hand): Fraction(1)}
    scores: dict[int, Fraction] = {}
    for card in deck:
        for final, probability in dealer_scores(total + card, has_ace or card == 1).items():
            scores[final] = scores.get(final, Fraction(0)) + probability / 13
    return scores


def naive_values(policy: np.ndarray):
    """The same values by plain recursion over cards, in exact fractions, with Gymnasium's functions for the
    rules."""

    def stay(total: int, has_ace: bool, dealer: int) -> Fraction:
        reward = Fraction(0)
        for hidden in deck:
            final = dealer_scores(dealer + hidden, dealer == 1 or hidden == 1)
            for points, probability in final.items():
                reward += probability * int(cmp(score(hand_of(total, has_ace)), points)) / 13
        return reward

    @cache
    def value(total: int, has_ace: bool, dealer: int) -> Fraction:
        hand = hand_of(total, has_ace)
        if is_bust(hand):
            return Fraction(-1)
        p = Fraction(float(policy[INDEX[sum_hand(hand), dealer, usable_ace(hand)]]))
        hit = sum(value(total + card, has_ace or card == 1, dealer) for card in deck) / 13
        return (1 - p) * stay(total, has_ace, dealer) + p * hit

    return value


def test_policy_value_matches_a_naive_recursion_over_cards(policy):
    """A slip in the transition tables, the dealer's draws, the scoring or the first deal changes this
    number."""
    value = naive_values(policy)
    deals = [(a, b, dealer) for a in deck for b in deck for dealer in deck]
    expected = sum(value(a + b, 1 in (a, b), dealer) for a, b, dealer in deals) / 13**3
    assert blackjack.policy_value(policy) == pytest.approx(float(expected), abs=1e-12)

    always = naive_values(np.zeros(280))  # a natural that stays
    for a, b, dealer in deals:
        if is_natural([a, b]):
            stays = 1 - Fraction(float(policy[INDEX[21, dealer, 1]]))
            wins = Fraction(sum(not is_natural([dealer, hidden]) for hidden in deck), 13)
            expected += stays * (wins - always(a + b, True, dealer)) / 13**3
    assert blackjack.policy_value(policy, sab=True) == pytest.approx(float(expected), abs=1e-12)


def test_policy_value_matches_hands_played_in_gymnasium(policy):
    """A solver of other rules than those the installed Gymnasium plays is of no use as a yardstick."""
    env = gymnasium.make("Blackjack-v1", disable_env_checker=True, sab=False)
    rng = np.random.default_rng(1)
    returns = []
    for hand in range(3000):
        observation, _ = env.reset(seed=0 if hand == 0 else None)
        terminated = False
        while not terminated:
            hit = int(rng.random() < policy[INDEX[observation]])
            observation, reward, terminated, _, _ = env.step(hit)
        returns.append(reward)
    bound = max(4 * np.std(returns) / 3000**0.5, 1e-3)  # four standard errors
    assert abs(np.mean(returns) - blackjack.policy_value(policy)) < bound


def test_the_agent_knows_the_rules_of_its_environment():
    """Catches reference returns of another game than `Blackjack-v1` as it is registered, with `sab`."""
    optimal = {}
    for name, rules in {"registered": {}, "plain": {"sab": False}, "pays": PAYS_NATURALS}.items():
        agent = BlackjackAgent()
        agent.bind(env := make_env("Blackjack-v1", rules))
        optimal[name] = agent.reference_returns().get("optimal")
        env.unwrapped.reset(seed=0)
        env.unwrapped.player, env.unwrapped.dealer = [1, 10], [7, 7, 7]
        assert env.unwrapped.step(0)[1] == float(name == "registered")
    assert optimal["registered"] == pytest.approx(-0.0431, abs=5e-5)
    assert optimal["plain"] == pytest.approx(-0.0466, abs=5e-5)
    assert optimal["pays"] is None


def test_known_values():
    """A change of rules (naturals, dealer's soft 17, ties) that moves the known figures must not pass
    silently."""
    assert blackjack.policy_value(blackjack.optimal_policy()) == pytest.approx(-0.0466, abs=5e-5)
    assert blackjack.policy_value(BELOW_17) == pytest.approx(-0.0793, abs=5e-5)
    assert blackjack.policy_value(POLICIES["stay"]) == pytest.approx(-0.1864, abs=5e-5)
    assert blackjack.policy_value(POLICIES["random"]) == pytest.approx(-0.3959, abs=5e-5)


def test_initial_distribution_by_hand():
    """An ace taken for 1, or a ten taken for one card in 13 instead of 4, shows in the first deal."""
    initial = blackjack.initial_distribution()
    assert initial.sum() == pytest.approx(1)
    assert initial[INDEX[21, 10, 1]] == pytest.approx(
        2 * 1 * 4 / 169 * 4 / 13
    )  # ace and ten in either order, ten
    assert initial[INDEX[12, 1, 1]] == pytest.approx(1 / 169 / 13)  # two aces, ace
    assert initial[INDEX[20, 2, 0]] == pytest.approx(16 / 169 / 13)  # two tens, two
    assert initial[INDEX[21, 5, 0]] == 0  # no two cards are a hard 21


def test_action_values_by_hand():
    """The two columns swapped, or a bust not paid, shows where one draw decides."""
    q_values = blackjack.action_values(np.zeros(280))
    assert q_values[INDEX[21, 7, 0]][blackjack.HIT] == pytest.approx(-1)  # every card busts
    stay_on_21 = q_values[INDEX[21, 7, 0]][blackjack.STAY]
    assert q_values[INDEX[20, 7, 0]][blackjack.HIT] == pytest.approx(
        -12 / 13 + stay_on_21 / 13
    )  # only an ace helps
    assert q_values[INDEX[21, 7, 1]][blackjack.STAY] == stay_on_21  # a stayed hand is its total, soft or hard


def test_optimal_policy_is_the_chart_that_players_know():
    """Tables transposed or read in another order than `states()` turn the known chart into another one."""
    rows = {(12, 0): "HHHSSSHHHH", (16, 0): "HSSSSSHHHH", (17, 0): "SSSSSSSSSS", (11, 0): "HHHHHHHHHH"}
    rows |= {(17, 1): "HHHHHHHHHH", (18, 1): "HSSSSSSSHH", (19, 1): "SSSSSSSSSS"}
    optimal = blackjack.optimal_policy()
    for (total, soft), row in rows.items():
        assert "".join("SH"[optimal[INDEX[total, dealer, soft]]] for dealer in range(1, 11)) == row, (
            total,
            soft,
        )


def test_optimal_action_values_are_those_of_the_optimal_policy():
    """A sweep too few leaves the values of the hands with the longest way to go too low."""
    followed = blackjack.action_values(blackjack.optimal_policy())
    np.testing.assert_allclose(blackjack.optimal_action_values(), followed, atol=1e-12)


def test_agreement_counts_states():
    """A share weighted by visits, or of disagreement, is another number than the one reported."""
    # Stay is right on hard 17-21 (50), hard 13-16 against 2-6 (20), hard 12 against 4-6 (3), soft 19-21 (30),
    # soft 18 against 2-8 (7): 110 states.
    assert blackjack.agreement(np.zeros(280)) == pytest.approx(110 / 280)
    assert blackjack.agreement(np.ones(280)) == pytest.approx(170 / 280)
    assert blackjack.agreement(blackjack.optimal_policy()) == 1


def test_states_are_the_280_in_their_fixed_order():
    """An array recorded under one order of the states must not be read under another."""
    assert len(STATES) == len(set(STATES)) == 280
    assert STATES[:2] == [(4, 1, 0), (4, 2, 0)]
    assert STATES[179:181] == [(21, 10, 0), (12, 1, 1)]  # 18 hard totals x 10 dealer cards come first
    assert STATES[-1] == (21, 10, 1)


def test_a_mapping_is_read_by_state():
    """A mapping read in its own order instead of by its keys gives states each other's probabilities."""
    mapping = {STATES[number]: MIXED[number] for number in reversed(range(280))}
    assert blackjack.policy_value(mapping) == blackjack.policy_value(MIXED)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({(4, 1, 0): 0.5}, "279 of the 280 states are missing"),
        (np.zeros(200), r"not \(200,\)"),
        (np.full(280, 1.5), "not from 1.5 to 1.5"),
        (np.full(280, np.nan), "nan"),
    ],
)
def test_other_arrays_than_policies_are_refused(wrong, message):
    """Logits or a partial table passed by mistake must not come back as a value."""
    with pytest.raises(ValueError, match=message):
        blackjack.policy_value(wrong)


def test_rounding_past_one_is_no_error():
    """A float32 softmax that rounds to just over 1 must not stop a training run."""
    assert blackjack.policy_value(np.full(280, 1 + 1e-7)) == pytest.approx(
        -1
    )  # hitting always ends in a bust


def test_agreement_refuses_probabilities():
    """Probabilities passed where actions belong would all count as wrong."""
    with pytest.raises(ValueError, match="probabilities > 0.5"):
        blackjack.agreement(np.full(280, 0.7))
