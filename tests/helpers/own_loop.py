"""Agents and the loop as LlamaGym's users write them."""

from __future__ import annotations

from typing import Any

from lgym import Agent


class VowelAgent(Agent):
    """Says a letter; the first in the reply counts."""

    def get_system_prompt(self) -> str:
        return "Say a letter."

    def format_observation(self, observation) -> str:
        return "abc"[observation]

    def extract_action(self, response: str):
        return next((ord(letter) - 97 for letter in response.lower() if "a" <= letter <= "z"), None)


def play(
    agent: Agent, env: Any, episodes: int, *, seed: int = 0, unread: float = 0.0
) -> tuple[list[float], list[dict]]:
    """Episode returns and every update's statistics; a reply that cannot be read ends the episode and is paid
    `unread`."""
    returns, told = [], []
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        done = False
        while not done:
            action = agent.act(observation)
            if action is None:
                agent.assign_reward(unread)
                break
            observation, reward, terminated, truncated, _ = env.step(action)
            agent.assign_reward(reward)
            done = terminated or truncated
        returns.append(sum(agent.current_episode_rewards))
        statistics = agent.terminate_episode()
        told += [statistics] if statistics else []
    return returns, told
