"""What would make training useless, and its mend; and what is odd and may be meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lgym.cli.check.random_play import RandomPlay
from lgym.data import RolloutDataModule

READABLE = 0.01
"""The share of replies that must name an action for there to be anything to learn from."""


class Finding(NamedTuple):
    """A problem keeps a run from learning; a warning is for a person to look at."""

    problem: bool
    text: str


def world_findings(data: RolloutDataModule, play: RandomPlay, seed_fault: str | None) -> Iterator[Finding]:
    """What can be said before a model is loaded."""
    if seed_fault is not None:
        yield seed_finding(seed_fault, data.group_size, data.turns_per_rollout)
    if play.constant and len(play.distinct) > 1:
        (text, _), *_ = play.questions
        yield Finding(
            False,
            f"Every one of {len(play.distinct)} observations reads {text[:80]!r}, so the model cannot tell states apart. "
            "Unless the environment is so, let the agent's format_observation say what differs.",
        )


def discount_finding(gamma: float, play: RandomPlay, turns_per_rollout: int | None) -> Finding | None:
    """Values that bootstrap without a discount where episodes are cut: nothing says then how high they are."""
    if gamma < 1.0 or not (play.truncated or turns_per_rollout is not None):
        return None
    cut = f"{play.truncated} of {len(play.returns)} episodes, played at random, were truncated"
    if not play.truncated:
        cut = f"data.turns_per_rollout is {turns_per_rollout}, which cuts episodes"
    return Finding(
        False,
        f"gamma is {gamma:g} and {cut}: what comes after the cut counts as the value foretold for it, undiscounted, so that "
        "values feed on themselves and may drift without bound. Set gamma: 0.99 (model.init_args.gamma), unless episodes "
        "are sure to end by themselves.",
    )


def seed_finding(fault: str, group_size: int, turns_per_rollout: int | None) -> Finding:
    """A seed that is ignored, told by how two episodes of one seed differ."""
    lost = "The environment does not honour its reset seed: "
    mend = "Draw all that is random from self.np_random, seeded by super().reset(seed=seed), and carry nothing over."
    if group_size > 1:
        return Finding(
            True,
            f"{lost}{fault}. data.group_size is {group_size}, and episodes of a group are compared as if they had begun "
            f"alike. {mend} Or set data.group_size: 1 with an algorithm that does not group, such as lgym.modules.TextPPO.",
        )
    if turns_per_rollout is not None:
        return Finding(
            True,
            f"{lost}{fault}. With data.turns_per_rollout a checkpoint holds episodes under way, which could not be brought "
            f"back. {mend} Or set data.episodes_per_rollout instead.",
        )
    return Finding(False, f"{lost}{fault}. Evaluations of one policy will differ. {mend}")


def parse_finding(rate: float, replies: Sequence[str], *, imitates: bool) -> Finding | None:
    """Replies in which no action can be found."""
    if rate >= READABLE:
        return None
    told = f"{rate:.1%} of {len(replies)} replies named an action; one of them is {replies[0][:120]!r}."
    if imitates:
        return Finding(False, f"{told} The turns to imitate have to teach the form of an answer first.")
    return Finding(
        True,
        f"{told} There is nothing to learn from. Say in the system prompt how to answer, read what the model does say with "
        "the agent's pattern or extract_action, show it the form by data.demonstrations (model.loss.sft_rollouts), or let "
        "it choose between candidates: lgym.policies.CandidatePolicy or ThinkPolicy.",
    )


def prompt_finding(tokens: int, limit: int) -> Finding:
    """A prompt that is too long by itself."""
    return Finding(
        True,
        f"A prompt without any earlier turn has {tokens} tokens, and the model's context leaves {limit}, so that no "
        "data.history fits. Shorten the system prompt or what the agent's format_observation says, or choose a model with a "
        "longer context.",
    )


def shortened_finding(cut: int, tried: int, characters: int, *, meant: bool) -> Finding:
    """Observations that the model does not read whole."""
    limit = "data.max_observation_tokens" if meant else "what the model's context leaves"
    return Finding(
        not meant,
        f"Of {tried} observations {cut} are longer than {limit}, one with {characters:,} characters: their middle is "
        "left out. Let the agent's format_observation say less, shorten the system prompt, choose a model with a longer "
        "context, or set data.max_observation_tokens if it is meant so.",
    )


def history_finding(shown: int, wanted: object, tokens: int, limit: int, share: float) -> Finding:
    """Prompts that are shortened, of a history of which `shown` turns fit."""
    return Finding(
        True,
        f"data.history is {wanted}, but a prompt with {shown + 1} earlier turns has {tokens} tokens, and the model's "
        f"context leaves {limit}: {share:.0%} of the prompts would be shortened. Set data.history: {shown}, shorten what "
        "the agent's format_observation says, set data.max_episode_steps, or choose a model with a longer context.",
    )


def returns_finding(returns: Sequence[float]) -> Finding | None:
    """Episodes that all are paid the same."""
    if len(returns) < 2 or min(returns) != max(returns):
        return None
    return Finding(
        False,
        f"All of {len(returns)} episodes, played at random and by the model, returned {returns[0]:g}: there is nothing to "
        "tell good from bad by. Give rewards on the way, make the task easier, or begin with data.demonstrations.",
    )
