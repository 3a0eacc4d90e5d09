"""A rollout as responses to learn from: sorted by prompt, with the episodes that they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lgym import distributed
from lgym.batch import ResponseBatch, pad_rows
from lgym.functional import discounted_returns
from lgym.rollout import Response, Rollout
from lgym.types import TokenTrace

TRACED_EPISODES = 3
"""Episodes of each rollout whose tokens are kept to look at."""


@dataclass(frozen=True)
class RolloutTurns:
    """The played turns of a rollout, stream by stream in the order of time, and their episodes."""

    rollout: Rollout
    batch: ResponseBatch
    """The same turns sorted by prompt, without advantages."""

    order: Tensor  # [turns] int64: the number in time of each turn of the batch
    rewards: Tensor  # [E, N], with bonuses, and minus the divergence where that is in the rewards
    episode_index: Tensor  # [turns] int64, the episode of each, from 0
    episode_returns: Tensor  # [episodes] undiscounted sums of `rewards`
    reset_seeds: Tensor  # [episodes] int64, the group of each
    penalties: Tensor | None  # [turns] subtracted from the rewards, as the batch is sorted

    def in_time(self, columns: Tensor) -> Tensor:
        """Columns [turns, ...] sorted as the batch, in the order of time."""
        return torch.empty_like(columns).index_copy(0, self.order, columns)

    @property
    def turn_numbers(self) -> Tensor:
        """[turns] the number of each turn in its episode, from 0; of episodes that began before the rollout,
        in it."""
        numbers = torch.arange(len(self.episode_index))
        begins = torch.ones_like(numbers, dtype=torch.bool)
        begins[1:] = self.episode_index[1:] != self.episode_index[:-1]
        return numbers - torch.where(begins, numbers, 0).cummax(0).values

    def returns_to_go(self, gamma: float) -> Tensor:
        """[turns] discounted rewards from each turn on; of episodes that the rollout cut, to the cut."""
        rollout, zeros = self.rollout, torch.zeros_like(self.rewards)
        returns = discounted_returns(self.rewards, zeros, rollout.terminated, rollout.truncated, gamma=gamma)
        return returns[rollout.mask]


def response_batch(rollout: Rollout) -> tuple[ResponseBatch, Tensor]:
    """All turns of a rollout sorted by prompt, without advantages; and [turns] their numbers in time."""
    prompt_index = rollout.prompt_index[rollout.mask]
    order = prompt_index.argsort(stable=True)
    responses = rollout.turn_responses()
    sorted_responses = [responses[i] for i in order.tolist()]
    action_mask = pad_rows([response.action_mask for response in sorted_responses]).bool()
    num_turns = distributed.all_reduce_mean(len(responses))
    distributions = candidate_table(rollout, responses)
    batch = ResponseBatch(
        prompts=rollout.prompts,
        prompt_chains=prompt_chains(rollout),
        prompt_index=prompt_index[order],
        response_ids=tuple(response.token_ids for response in sorted_responses),
        choices=torch.tensor([response.choice for response in sorted_responses]),
        action_mask=action_mask,
        old_logprobs=pad_rows([response.logprobs for response in sorted_responses]).float(),
        advantages=torch.zeros(action_mask.shape),
        loss_scale=1.0 / num_turns,
        mean_tokens=distributed.all_reduce_mean(int(action_mask.sum())) / num_turns,
        by_prompt=distributions is not None,
        old_candidate_logprobs=distributions,
    )
    return batch, order


def rollout_turns(
    rollout: Rollout, batch: ResponseBatch, order: Tensor, penalties: Tensor | None
) -> RolloutTurns:
    """The turns of a rollout.

    Args:
        rollout: what was played.
        batch: its turns, sorted by prompt.
        order: [turns] their numbers in time.
        penalties: [turns] as the batch is sorted, subtracted from the rewards; `None` subtracts nothing.
    """
    rewards, mask = rollout.learned_rewards, rollout.mask
    if penalties is not None:
        rewards = rewards.clone()
        rewards[mask] -= torch.empty_like(penalties).index_copy(0, order, penalties)
    episode_index = rollout.episode_ids[mask].unique(return_inverse=True)[1]
    episodes = int(episode_index.max()) + 1
    returns = rewards.new_zeros(episodes).index_add(0, episode_index, rewards[mask])
    reset_seeds = torch.zeros(episodes, dtype=torch.int64).index_copy(
        0, episode_index, rollout.reset_seeds[mask]
    )
    return RolloutTurns(rollout, batch, order, rewards, episode_index, returns, reset_seeds, penalties)


def candidate_table(rollout: Rollout, responses: Sequence[Response]) -> Tensor | None:
    """[U, C] the behavior policy's distributions, padded with -inf; `None` where one is not known."""
    if not all(response.candidate_logprobs for response in responses):
        return None
    width = max(len(prompt.candidates) for prompt in rollout.prompts)
    table = torch.full((len(rollout.prompts), width), -torch.inf)
    rows = dict(zip(rollout.prompt_index[rollout.mask].tolist(), responses, strict=True))
    for row, response in rows.items():
        table[row, : len(response.candidate_logprobs)] = torch.tensor(response.candidate_logprobs)
    return table


def prompt_chains(rollout: Rollout) -> tuple[tuple[int, ...], ...]:
    """The prompts that were acted on, those together that one episode led through and that each extend the
    one before.

    They share all but their ends, so a pass computes them together for little more than the longest.
    """
    index, mask = rollout.prompt_index, rollout.mask
    together = (rollout.episode_ids[:, 1:] == rollout.episode_ids[:, :-1]) & mask[:, 1:] & mask[:, :-1]
    steps = torch.stack([index[:, :-1][together], index[:, 1:][together]], dim=1).unique(dim=0).tolist()
    chains: dict[int, list[int]] = {}
    for before, after in sorted(steps, key=lambda step: len(rollout.prompts[step[1]].token_ids)):
        shorter, longer = rollout.prompts[before].token_ids, rollout.prompts[after].token_ids
        if after in chains or len(longer) <= len(shorter) or longer[: len(shorter)] != shorter:
            continue
        chain = chains.setdefault(before, [before])
        if chain[-1] == before:
            chain.append(after)
            chains[after] = chain
    acted_on = index[mask].unique().tolist()
    return tuple(tuple(chains.get(p, [p])) for p in acted_on if chains.get(p, [p])[0] == p)


def token_traces(turns: RolloutTurns, batch: ResponseBatch) -> tuple[tuple[TokenTrace, ...], ...]:
    """The first episodes of a rollout of free text, turn by turn."""
    if batch.by_prompt:
        return ()
    rows = turns.order.argsort()  # of each turn in time
    episodes = [rows[turns.episode_index == episode].tolist() for episode in range(TRACED_EPISODES)]
    return tuple(tuple(_trace(batch, row) for row in episode) for episode in episodes if episode)


def _trace(batch: ResponseBatch, row: int) -> TokenTrace:
    token_ids = batch.response_ids[row]
    columns = (
        column[row].tolist()[: len(token_ids)]
        for column in (batch.action_mask, batch.old_logprobs, batch.advantages)
    )
    mask, logprobs, advantages = (tuple(column) for column in columns)
    return TokenTrace(
        batch.prompts[int(batch.prompt_index[row])].token_ids, token_ids, mask, logprobs, advantages
    )
