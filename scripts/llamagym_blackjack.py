"""Blackjack in the loop that LlamaGym's users wrote: three methods, `act`, `assign_reward`,
`terminate_episode`.

    python scripts/llamagym_blackjack.py --model smollm2-135m-instruct --episodes 2000 --imitate 256

A small model does not come to "Action: 1" by itself: with `--imitate` it is first shown the form of an
answer, on hands that are answered at random. Prints the mean return of every hundred episodes beside what is
known of the game, and the seconds so far.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from typing import Any

import gymnasium as gym

from lgym import Agent
from lgym.agents import BlackjackAgent as Words


class BlackjackAgent(Agent):
    default_action = 0

    def get_system_prompt(self) -> str:
        return (
            "You play Blackjack. You see the total of your hand, the card that the dealer shows, and "
            "whether you hold an "
            'ace that counts 11. Answer with "Action: 0" to stay or "Action: 1" to take a card.'
        )

    def format_observation(self, observation: Any) -> str:
        ace = "an ace" if observation[2] else "no ace"
        return f"Your total is {observation[0]}, with {ace}. The dealer shows {observation[1]}."

    def extract_action(self, response: str) -> Any:
        said = re.findall(r"Action: ([01])", response)
        return int(said[-1]) if said else None


def play(agent: Agent, env: gym.Env, episodes: int) -> list[float]:
    """The loop; the return of every episode."""
    returns, begun = [], time.perf_counter()
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        done = False
        while not done:
            action = agent.act(observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            agent.assign_reward(float(reward))
            done = terminated or truncated
        returns.append(sum(agent.current_episode_rewards))
        agent.terminate_episode()
        if len(returns) % 100 == 0:
            mean = sum(returns[-100:]) / 100
            print(
                f"episodes {len(returns):5d}  mean return {mean:+.3f}  {time.perf_counter() - begun:6.0f} s",
                flush=True,
            )
    return returns


def answered_at_random(env: gym.Env, count: int, seed: int) -> list[tuple[Any, str]]:
    """Observations of the game and replies to them that show the form of an answer, and nothing of how to
    play."""
    rng = random.Random(seed)
    turns: list[tuple[Any, str]] = []
    done = True
    while len(turns) < count:
        if done:
            observation, _ = env.reset(seed=rng.getrandbits(31))
        action = rng.randrange(2)
        turns.append((observation, f"Action: {action}"))
        observation, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
    return turns


def main() -> None:
    from lgym.models import load_model_and_tokenizer

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="a name of the registry, a folder or a Hub id"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of what the model says and how it learns")
    parser.add_argument("--imitate", type=int, default=0, help="turns to show it first, answered at random")
    given = parser.parse_args()
    model, tokenizer = load_model_and_tokenizer(given.model)
    agent = BlackjackAgent(model, tokenizer, given.device, seed=given.seed)
    print(", ".join(f"{name} {value:+.3f}" for name, value in Words().reference_returns().items()))
    env = gym.make("Blackjack-v1")
    if given.imitate:
        print(agent.imitate(answered_at_random(env, given.imitate, given.seed)))
    play(agent, env, given.episodes)


if __name__ == "__main__":
    main()
