"""The prompts of a run: their tokens, what they share, and whether a history fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lgym.batch import Rollout
from lgym.cli.check.findings import Finding, history_finding, prompt_finding, shortened_finding
from lgym.cli.check.random_play import RandomPlay
from lgym.data.chat import ContextBuilder
from lgym.models.packing import common_prefix_length

ASKED = 2000
"""Distinct questions of random play that are tried as prompts."""


@dataclass(frozen=True)
class TokenCounts:
    """Of a rollout's prompts and answers, in tokens."""

    prompt_mean: float
    prompt_most: int
    shared: int
    """What all prompts begin with."""

    reply_mean: float
    """Of the answers that were given; of a choice the candidate's."""

    distinct_prompts: int
    turns: int
    context_length: int
    cut_replies: float
    """The share of replies that ran into the limit."""


def count_tokens(rollout: Rollout, context_length: int) -> TokenCounts:
    acted_on = [rollout.contexts[i] for i in rollout.context_ids[rollout.mask].unique().tolist()]
    lengths = [len(context.prompt_ids) for context in acted_on]
    if rollout.replies:
        answers = [len(reply.ids) for reply in rollout.replies]
    else:
        pairs = zip(rollout.context_ids[rollout.mask].tolist(), rollout.choices[rollout.mask].tolist(), strict=True)
        answers = [len(rollout.contexts[c].candidate_ids[choice]) for c, choice in pairs]
    return TokenCounts(
        sum(lengths) / len(lengths),
        max(lengths),
        common_prefix_length([context.prompt_ids for context in acted_on]),
        sum(answers) / len(answers),
        len(acted_on),
        int(rollout.mask.sum()),
        context_length,
        sum(not reply.ended for reply in rollout.replies) / max(1, len(rollout.replies)),
    )


def try_questions(builder: ContextBuilder, play: RandomPlay, *, chooses: bool, meant: bool) -> Finding | None:
    """Makes prompts of what random play met; what there is to say if some of them do not hold their whole observation, which
    `meant` says to be by the user's own limit.

    Raises:
        ValueError: if one is too long without its observation, or candidates tokenise alike.
    """
    longest = max(play.questions, key=lambda question: len(question[0]))
    tried = dict.fromkeys([*list(play.questions)[:ASKED], longest])
    cut = [text for text, candidates in tried if builder.context(text, candidates if chooses else ()).shortened]
    return shortened_finding(len(cut), len(tried), max(map(len, cut)), meant=meant) if cut else None


def history_fits(
    builder: ContextBuilder, episodes: Sequence[Sequence[tuple[str, str]]], history: Any, limit: int
) -> Finding | None:
    """Whether episodes, of observations and answers, can be shown with all the earlier turns that are wanted."""
    turns, shortened = 0, 0
    worst: tuple[int, int] | None = None
    for episode in episodes:
        turns += len(episode)
        over = _too_long(builder, episode, len(episode) if history == "full" else min(len(episode), history + 1), limit)
        shortened += len(over)
        if over:
            shown = episode[: over[0] + 1]
            fit = _fitting(builder, shown, limit)
            if worst is None or fit < worst[0]:
                worst = (fit, _length(builder, shown[-fit - 1 :]))
    if worst is None:
        return None
    if worst[0] == 0:
        return prompt_finding(worst[1], limit)
    return history_finding(worst[0] - 1, history, worst[1], limit, shortened / turns)


def _too_long(builder: ContextBuilder, episode: Sequence[tuple[str, str]], reach: int, limit: int) -> list[int]:
    """The turns whose prompts, of so many turns with their own, are over the limit."""

    def over(t: int) -> bool:
        return _length(builder, episode[max(0, t + 1 - reach) : t + 1]) > limit

    first = bisect_left(range(reach), True, key=over)  # prompts grow until the window is full
    return [*range(first, reach), *filter(over, range(reach, len(episode)))]


def _fitting(builder: ContextBuilder, turns: Sequence[tuple[str, str]], limit: int) -> int:
    """How many of the last turns fit into one prompt."""
    return bisect_left(range(1, len(turns) + 1), True, key=lambda n: _length(builder, turns[-n:]) > limit)


def _length(builder: ContextBuilder, turns: Sequence[tuple[str, str]]) -> int:
    """Tokens of the prompt at the last of these turns, with the others before it."""
    shown = [(observation, builder.reply_text(answer)) for observation, answer in turns[:-1]]
    return len(builder.encode(builder.render(shown, turns[-1][0])))
