"""Records of play: what the policy was asked, what it answered and what the environment paid.

    U  distinct prompts of a rollout      E  environments played together
    C  candidates, padded to the longest  N  turns of an environment, in the order of time
    T  tokens

Every tensor here lives on the CPU in fp32, int64 or bool.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt and the answers that it allows. Two prompts are equal that ask the same.

    Attributes:
        token_ids: tokens of the rendered prompt, up to the one after which the agent acts.
        candidate_ids: tokens of each of the C candidates, of any lengths; empty for a text-generating policy.
        candidates: the candidates as the agent wrote them.
        observation_text: the observation as the agent wrote it, or the part of it that fits.
        shortened: True if that is not the whole observation.
    """

    _hash: int = field(init=False, repr=False)  # compared first, since prompts are long
    token_ids: tuple[int, ...]
    candidate_ids: tuple[tuple[int, ...], ...]
    candidates: tuple[str, ...]
    observation_text: str = field(compare=False)
    shortened: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.token_ids, self.candidate_ids)))

    def __hash__(self) -> int:
        return self._hash  # asked for every turn


@dataclass(frozen=True, eq=False)
class Response:
    """An answer of the policy, with the log-probability of each token at rollout time.

    A choice between candidates is a response of one decision: the candidate's first token, with the
    log-probability of the whole candidate.

    Attributes:
        token_ids: the T tokens in the order of time.
        logprobs: [T] nats, under the distribution that each token was sampled from; 0 where it was not
            sampled.
        finished: True if it ended by itself, with a stop token, a stop text or a choice; otherwise the limit
            cut it.
        text: the response in words, without a stop token.
        action_mask: [T] 1 for the tokens that the policy chose; by default all.
        choice: position of the chosen candidate in the prompt's list; -1 for free text.
        action_text: the text that the agent reads an action from; by default `text`.
        history_ids: the tokens that stand in the conversation; by default `token_ids`.
        candidate_logprobs: [C] the whole distribution that the choice was drawn from; empty where it is not
            known.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool
    text: str = ""
    action_mask: tuple[bool, ...] = ()
    choice: int = -1
    action_text: str | None = None
    history_ids: tuple[int, ...] = ()
    candidate_logprobs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        defaults = {
            "action_mask": self.action_mask or (True,) * len(self.token_ids),
            "action_text": self.text if self.action_text is None else self.action_text,
            "history_ids": self.history_ids or self.token_ids,
        }
        for name, value in defaults.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False)
class EpisodeStatistics:
    """The outcomes of B episodes, on the CPU."""

    returns: Tensor  # [B] undiscounted
    lengths: Tensor  # [B] turns
    penalties: Tensor  # [B] the agent's own penalty in the returns
    successes: Tensor  # [B] 1 or 0; NaN where nobody said
    looping: Tensor | None = None  # [B] bool, 1 where it went in circles until the time limit; in evaluations

    def __len__(self) -> int:
        return len(self.returns)


@dataclass(frozen=True)
class Rollout:
    """E environment streams of N turns each, over U distinct prompts.

    A stream that has nothing left to play, or has lost an episode, holds idle turns, where `mask` is 0.

    Attributes:
        seconds: wall-clock time of playing it.
        latest_episodes: the last finished episodes of every environment, as many of each: the fewest that one
            of them has finished here, or one, whichever rollout it ended in; where rollouts are counted in
            turns.
        total_turns: turns that this process has played in the run, with those of this rollout.
        total_episodes: episodes that it has finished, likewise.
        episodes_dropped: episodes lost with their process; none of their turns is here.
        next_prompt_index: [E, N] int64, the prompt of the observation that the turn led to; -1 where it
            terminated. Not known of a user's own loop.
        first_visits: [E, N] int64, a digest of the observation that the turn led to, if its episode had not
            been there before; else 0, and where it terminated. Not known of a user's own loop.
        bonuses: [E, N] for exploration, to learn from beside `rewards`; `None` where none are paid.
    """

    prompts: tuple[Prompt, ...]
    prompt_values: Tensor  # [U] state values at rollout time; NaN without a critic
    responses: tuple[Response, ...]
    prompt_index: Tensor  # [E, N] int64, the prompt of each turn
    response_index: Tensor  # [E, N] int64, the response of each turn
    rewards: Tensor  # [E, N]
    terminated: Tensor  # [E, N] bool
    truncated: Tensor  # [E, N] bool, also where the rollout itself cut an episode
    cut: Tensor  # [E, N] bool, where it did: the last of the episode's turns here
    mask: Tensor  # [E, N] bool, 1 for turns that were played
    parsed: Tensor  # [E, N] bool, whether the agent could read an action
    episode_ids: Tensor  # [E, N] int64, the number of the turn's episode, counted over the run
    reset_seeds: Tensor  # [E, N] int64, the seed that this episode was reset with
    next_values: Tensor  # [E, N] value of the observation that the turn led to; 0 where terminated
    episode_returns: Tensor  # [episodes that ended in this rollout]
    episode_lengths: Tensor  # [episodes that ended in this rollout], turns
    episode_penalties: Tensor  # likewise, the agent's own penalty in their returns
    episode_successes: Tensor  # likewise, 1 or 0; NaN where nobody said
    seconds: float
    latest_episodes: EpisodeStatistics | None = None
    total_turns: int = 0
    total_episodes: int = 0
    episodes_dropped: int = 0
    next_prompt_index: Tensor | None = None
    first_visits: Tensor | None = None
    bonuses: Tensor | None = None

    @property
    def learned_rewards(self) -> Tensor:
        """[E, N] the rewards with their bonuses, which are learned from."""
        return self.rewards if self.bonuses is None else self.rewards + self.bonuses

    @property
    def values(self) -> Tensor:
        """[E, N] state values at rollout time."""
        return self.prompt_values[self.prompt_index]

    @property
    def ended_episodes(self) -> EpisodeStatistics:
        """The episodes that ended in this rollout."""
        return EpisodeStatistics(
            self.episode_returns, self.episode_lengths, self.episode_penalties, self.episode_successes
        )

    @property
    def reported_episodes(self) -> EpisodeStatistics:
        """The episodes that means of returns and lengths describe: comparable from rollout to rollout.

        Where rollouts are counted in episodes, their own. Where they are counted in turns, the last ones of
        every environment, as many of each: of environments that start together, only the short ones end in
        the first rollout, and only the long ones in the next.
        """
        return self.ended_episodes if self.latest_episodes is None else self.latest_episodes

    def turn_responses(self) -> list[Response]:
        """The response of each played turn, stream by stream."""
        return [self.responses[i] for i in self.response_index[self.mask].tolist()]

    def turn_prompts(self) -> Sequence[Prompt]:
        """The prompt of each played turn, stream by stream."""
        return [self.prompts[i] for i in self.prompt_index[self.mask].tolist()]
