"""`scripts/replay_memory.py`: its transitions are those of the game."""

from __future__ import annotations

from itertools import islice

import gymnasium

from helpers import tiny
from lgym.agents import CartPoleAgent
from lgym.data import ReplayBuffer
from lgym.data.prompts.prompt_builder import PromptBuilder
from replay_memory import batch_of, played


def test_a_transition_leads_to_the_next_prompt_of_its_episode():
    agent, env = CartPoleAgent(), gymnasium.make("CartPole-v1")
    builder = PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048)
    turns = list(islice(played(env, agent), 100))
    batch = batch_of(turns, builder)
    ends = [row for row, turn in enumerate(turns) if turn.terminated or turn.truncated]
    assert len(ends) > 2
    for row, turn in enumerate(turns):
        assert batch.prompts[batch.prompt_index[row]].observation_text == turn.question[0]
        assert batch.prompts[batch.prompt_index[row]].candidates[batch.choices[row]] == turn.answer
        following = int(batch.next_prompt_index[row])
        if row in ends or row == len(turns) - 1:
            assert following == -1
        else:
            assert batch.prompts[following].observation_text == turns[row + 1].question[0]
    assert ((batch.discounts > 0) == (batch.next_prompt_index >= 0)).all()
    buffer = ReplayBuffer(capacity=1000)
    buffer.add(batch)
    assert len(buffer) == 100
