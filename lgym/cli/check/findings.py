"""Findings of a check: problems that would make training useless, with their remedy, and oddities."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.random_play import RandomPlay

MAX_QUESTIONS = 2000  # of random play that are tried as prompts

TurnTexts = tuple[str, str]  # an observation and the answer to it


class Finding(NamedTuple):
    """A problem keeps a run from learning; a warning is for a person to look at."""

    problem: bool
    text: str


def constant_findings(play: RandomPlay) -> Iterator[Finding]:
    """Observations that all read the same."""
    texts = {text for text, _ in play.questions}
    if len(texts) == 1 and len(play.distinct) > 1:
        yield Finding(
            False,
            f"Every one of {len(play.distinct)} observations reads {texts.pop()[:80]!r}, so the model cannot "
            "tell states apart. Unless the environment is so, let the agent's format_observation say what "
            "differs.",
        )


def discount_findings(gamma: float, play: RandomPlay, turns_per_rollout: int | None) -> Iterator[Finding]:
    """Values that bootstrap without a discount where episodes are cut: nothing bounds them then."""
    cut = f"data.turns_per_rollout is {turns_per_rollout}, which cuts episodes"
    if play.truncated:
        cut = f"{play.truncated} of {len(play.returns)} episodes, played at random, were truncated"
    if gamma >= 1.0 and (play.truncated or turns_per_rollout is not None):
        yield Finding(
            False,
            f"gamma is {gamma:g} and {cut}: the return after the cut is the value predicted for it, "
            "undiscounted, so that values feed on themselves and may drift without bound. Set gamma: 0.99 "
            "(model.init_args.gamma), unless episodes are sure to end by themselves.",
        )


def seed_findings(fault: str | None, group_size: int, turns_per_rollout: int | None) -> Iterator[Finding]:
    """A reset seed that is ignored, with the difference between two episodes of one seed."""
    if fault is None:
        return
    lost = f"The environment does not honor its reset seed: {fault}."
    remedy = (
        "Draw random numbers from self.np_random, seeded by super().reset(seed=seed), and carry nothing over."
    )
    if group_size > 1:
        yield Finding(
            True,
            f"{lost} data.group_size is {group_size}, and episodes of a group are compared as if they had "
            f"begun alike. {remedy} Or set data.group_size: 1 with an algorithm that does not group, such as "
            "lgym.modules.PPO.",
        )
    elif turns_per_rollout is not None:
        yield Finding(
            True,
            f"{lost} With data.turns_per_rollout a checkpoint holds episodes under way, which could not be "
            f"brought back. {remedy} Or set data.episodes_per_rollout instead.",
        )
    else:
        yield Finding(False, f"{lost} Evaluations of one policy will differ. {remedy}")


def returns_findings(returns: Sequence[float]) -> Iterator[Finding]:
    """Episodes that all have the same return."""
    if len(returns) > 1 and min(returns) == max(returns):
        yield Finding(
            False,
            f"All of {len(returns)} episodes, played at random and by the model, returned {returns[0]:g}: "
            "there is nothing to tell good from bad by. Give rewards on the way, make the task easier, or "
            "begin with data.demonstrations.",
        )


def observation_findings(
    builder: PromptBuilder, play: RandomPlay, *, chooses: bool, limited: bool, seconds: float = inf
) -> Iterator[Finding]:
    """Observations of random play that do not fit a prompt; `limited` if the user has set a limit. The
    longest comes first, and after so many `seconds` no further one is tried.

    Raises:
        ConfigError: if one is too long without its observation, or candidates tokenize alike.
    """
    longest = max(play.questions, key=lambda question: len(question[0]))
    deadline = time.perf_counter() + seconds
    cut, tried = [], 0
    for text, candidates in dict.fromkeys([longest, *list(play.questions)[:MAX_QUESTIONS]]):
        tried += 1
        if builder.prompt(text, candidates if chooses else ()).shortened:
            cut.append(len(text))
        if time.perf_counter() > deadline:
            break
    if cut:
        limit = "data.max_observation_tokens" if limited else "what the model's context leaves"
        yield Finding(
            not limited,
            f"Of {tried} observations {len(cut)} are longer than {limit}, one with {max(cut):,} "
            "characters: their middle is left out. Let the agent's format_observation say less, shorten the "
            "system prompt, choose a model with a longer context, or set data.max_observation_tokens if it "
            "is meant so.",
        )


def history_findings(
    builder: PromptBuilder, episodes: Sequence[Sequence[TurnTexts]], history: Any, limit: int
) -> Iterator[Finding]:
    """Episodes whose prompts, with all the earlier turns that `history` asks for, exceed `limit` tokens."""
    cut = [_turns_over(builder, episode, history, limit) for episode in episodes]
    fits: list[tuple[int, int]] = []  # turns that fit, and tokens of one turn more
    for episode, over in zip(episodes, cut, strict=True):
        if over:
            shown = episode[: over[0] + 1]
            sizes = range(1, len(shown) + 1)
            fit = bisect_left(sizes, True, key=lambda n: _prompt_tokens(builder, shown[-n:]) > limit)
            fits.append((fit, _prompt_tokens(builder, shown[-fit - 1 :])))
    least, tokens = min(fits, default=(None, 0))
    if least == 0:
        yield Finding(
            True,
            f"A prompt without any earlier turn has {tokens} tokens, and the model's context leaves "
            f"{limit}, so that no data.history fits. Shorten the system prompt or what the agent's "
            "format_observation says, or choose a model with a longer context.",
        )
    elif least is not None:
        share = sum(map(len, cut)) / sum(map(len, episodes))
        yield Finding(
            True,
            f"data.history is {history}, but a prompt with {least} earlier turns has {tokens} tokens, and "
            f"the model's context leaves {limit}: {share:.0%} of the prompts would be shortened. Set "
            f"data.history: {least - 1}, shorten what the agent's format_observation says, set "
            "data.max_episode_steps, or choose a model with a longer context.",
        )


def _turns_over(builder: PromptBuilder, episode: Sequence[TurnTexts], history: Any, limit: int) -> list[int]:
    """Indices of the turns whose prompts, with the earlier turns of `history`, are over the limit."""
    reach = len(episode) if history == "full" else min(len(episode), history + 1)

    def over(t: int) -> bool:
        return _prompt_tokens(builder, episode[max(0, t + 1 - reach) : t + 1]) > limit

    first = bisect_left(range(reach), True, key=over)  # prompts grow until the window is full
    return [*range(first, reach), *filter(over, range(reach, len(episode)))]


def _prompt_tokens(builder: PromptBuilder, turns: Sequence[TurnTexts]) -> int:
    shown = [(observation, builder.response_text(answer)) for observation, answer in turns[:-1]]
    return len(builder.encode(builder.render(shown, turns[-1][0])))
