"""From a rollout to the transitions that values of actions are learned from."""

import torch

from lgym.functional import n_step_returns
from lgym.rollout import Rollout
from lgym.transitions import TransitionBatch
from lgym.types import ConfigError


def rollout_transitions(rollout: Rollout, *, gamma: float, n: int, greedy: bool = False) -> TransitionBatch:
    """The turns of a rollout, each with the rewards of up to n turns and the prompt that these led to.

    Where the rollout, or a time limit, cuts an episode off, it bootstraps there.

    Args:
        rollout: with what its turns led to.
        gamma: the discount per turn.
        n: number of turns.
        greedy: count further turns only as long as their choices were the likeliest, where that is known.

    Raises:
        ConfigError: of a loop that does not know what its turns led to.
    """
    if rollout.next_prompt_index is None:
        raise ConfigError(
            "Values of actions are learned in `lgym fit`; a loop of one's own records no transitions."
        )
    mask = rollout.mask
    rewards, last, discounts = n_step_returns(
        rollout.learned_rewards,
        rollout.terminated,
        rollout.truncated,
        gamma=gamma,
        n=n,
        followed=_likeliest(rollout) if greedy else None,
    )
    responses = rollout.turn_responses()
    next_prompts = rollout.next_prompt_index.gather(1, last).masked_fill(discounts == 0, -1)[mask]
    return TransitionBatch(
        prompts=rollout.prompts,
        prompt_index=rollout.prompt_index[mask],
        choices=torch.tensor([response.choice for response in responses]),
        rewards=rewards[mask],
        next_prompt_index=next_prompts,
        discounts=discounts[mask],
        next_values=rollout.prompt_values[next_prompts].masked_fill(next_prompts < 0, 0.0),
    )


def _likeliest(rollout: Rollout) -> torch.Tensor:
    """[E, N] of bool, turns whose choice was the likeliest, or of an unknown probability."""
    likeliest = [
        not response.candidate_logprobs
        or response.candidate_logprobs[response.choice] == max(response.candidate_logprobs)
        for response in rollout.responses
    ]
    return torch.tensor(likeliest)[rollout.response_index]
