"""LlamaGym's own Blackjack example on lgym: its prompt, its regular expression and its loop, with another import.

    python scripts/llamagym_blackjack.py --model smollm2-135m-instruct --episodes 2000

Prints the mean return of every hundred episodes beside what is known of the game, and the seconds so far. The agent is
that of `examples/blackjack.py` of LlamaGym 0.1.1 (Rohan Pandey, MIT licence), word for word.
"""

from __future__ import annotations

import argparse
import re
import time
from typing import Any

import gymnasium as gym

from lgym import Agent
from lgym.agents import BlackjackAgent as Words


class BlackjackAgent(Agent):
    def get_system_prompt(self) -> str:
        return """You are an expert blackjack player. Every turn, you'll see your current sum, the dealer's showing card value, and whether you have a usable ace. Win by exceeding the dealer's hand but not exceeding 21.
Decide whether to stay with your current sum by writing "Action: 0" or accept another card by writing "Action: 1". Accept a card unless very close to 21."""  # noqa: E501

    def format_observation(self, observation: Any) -> str:
        return f"You: {observation[0]}. Dealer: {observation[1]}. You have {'an' if bool(observation[2]) else 'no'} ace."

    def extract_action(self, response: str) -> Any:
        match = re.compile(r"Action: (\d)").search(response)
        if match:
            return int(match.group(1))

        digits = [char for char in response if char.isdigit()]
        if len(digits) == 0 or digits[-1] not in ("0", "1"):
            if "stick" in response.lower():
                return 0
            elif "hit" in response.lower():  # noqa: RET505
                return 1

        return 0


def play(agent: Agent, env: gym.Env, episodes: int) -> list[float]:
    """The loop; the return of every episode. An action that the game does not have ends the hand as lost."""
    returns, begun = [], time.perf_counter()
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        done = False
        while not done:
            action = agent.act(observation)
            if not env.action_space.contains(action):  # "Action: 7"
                agent.assign_reward(-1.0)
                break
            observation, reward, terminated, truncated, _ = env.step(action)
            agent.assign_reward(float(reward))
            done = terminated or truncated
        returns.append(sum(agent.current_episode_rewards))
        agent.terminate_episode()
        if len(returns) % 100 == 0:
            mean = sum(returns[-100:]) / 100
            print(f"episodes {len(returns):5d}  mean return {mean:+.3f}  {time.perf_counter() - begun:6.0f} s", flush=True)
    return returns


def main() -> None:
    from lgym.models import load_model_and_tokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name of the registry, a folder or a Hub id")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of what the model says and how it learns")
    given = parser.parse_args()
    model, tokenizer = load_model_and_tokenizer(given.model)
    agent = BlackjackAgent(model, tokenizer, given.device, seed=given.seed)
    print(", ".join(f"{name} {value:+.3f}" for name, value in Words().baselines().items()))
    play(agent, gym.make("Blackjack-v1"), given.episodes)


if __name__ == "__main__":
    main()
