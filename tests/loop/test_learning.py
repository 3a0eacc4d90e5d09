"""The loop learns, as LlamaGym's did not, and where rewards are turned round, the other way."""

from __future__ import annotations

import gymnasium
import pytest

import llamagym_blackjack
from helpers import tiny
from helpers.finetuned import finetuned
from helpers.letters import LetterEnv
from helpers.own_loop import VowelAgent, play


@pytest.mark.parametrize("sign", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_it_learns_to_say_vowels(sign):
    """One in thirty replies of the untrained model begins with one. In the control they cost 1, and
    vanish."""
    learn = {"batch_size": 64, "mini_batch_size": 16, "ppo_epochs": 2, "learning_rate": 0.01}
    agent = VowelAgent(tiny.causal_lm(), tiny.tokenizer(), "cpu", {"max_new_tokens": 2}, learn, lora={"r": 4})
    returns, told = play(agent, LetterEnv(sign=sign), 600)
    assert len(told) == 9  # 9 * 64 = 576
    vowels = sum(sign * r for r in returns[-150:]) / 150
    assert vowels > 0.7 if sign > 0 else vowels < 0.1


class Signed(gymnasium.RewardWrapper):
    """The same game, its rewards times a sign."""

    def __init__(self, env, sign):
        super().__init__(env)
        self.sign = sign

    def reward(self, reward):
        return self.sign * float(reward)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
def test_blackjack_in_the_loop_learns(sign):
    """2,000 hands. Random play is worth -0.40, always stay -0.19; one hand's standard
    deviation is 0.95, so the mean of 500 has 0.04. The control loses on purpose: always hit is worth -1."""
    words = llamagym_blackjack.BlackjackAgent()
    model, tokenizer = finetuned(words, ("Action: 0", "Action: 1"))
    agent = llamagym_blackjack.BlackjackAgent(model, tokenizer, "cpu")
    paid = llamagym_blackjack.play(agent, Signed(gymnasium.make("Blackjack-v1"), sign), 2000)
    first, last = (sign * sum(part) / 500 for part in (paid[:500], paid[-500:]))
    if sign > 0:
        assert last > -0.28
    else:
        assert last < min(first, -0.7)


def test_blackjack_in_the_loop_plays():
    """On the tiny model as it is, whose babble counts as unread: some hands to the end, and an update."""
    agent = llamagym_blackjack.BlackjackAgent(
        tiny.causal_lm(), tiny.tokenizer(), "cpu", {"max_new_tokens": 4}, {"batch_size": 4}
    )
    returns = llamagym_blackjack.play(agent, gymnasium.make("Blackjack-v1"), 5)
    assert set(returns) <= {-1.0, 0.0, 1.0}
    assert not agent._learner.episode.turns
