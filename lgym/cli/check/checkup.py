"""The check from end to end: the environment first, then the model in it, then what stands in the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lgym.cli.check.findings import Finding, discount_finding, parse_finding, returns_finding, world_findings
from lgym.cli.check.prompt_lengths import TokenCounts, count_tokens, history_fits, try_questions
from lgym.cli.check.random_play import RandomPlay, Score, play_at_random, score, seed_fault
from lgym.cli.check.report import (
    SHOWN_REPLIES,
    show_candidates,
    show_episode,
    show_estimate,
    show_findings,
    show_prompt,
    show_replies,
    show_scores,
    show_tokens,
    show_world,
)
from lgym.cli.check.trial import Amounts, Estimate, Trial, estimate, try_out
from lgym.data import RolloutDataModule
from lgym.data.chat import ContextBuilder
from lgym.modules import PolicyLearner
from lgym.plain_text import as_json
from lgym.terminal import one_line, say
from lgym.types import ConfigError, Episode

SEEDS = 3  # that are tried for whether they are honoured


def check(
    data: RolloutDataModule,
    module: PolicyLearner,
    with_model: Callable[[Callable[[], None]], None],
    *,
    random_episodes: int,
    path: str | None = None,
) -> list[Finding]:
    """Prints what the model will see, and returns what was found.

    Args:
        data: the run's data module; it is left set to a small rollout.
        module: the run's module, without its model as yet.
        with_model: runs a function once the model is built.
        random_episodes: episodes to play at random.
        path: a file to write the same to, as JSON.

    Raises:
        ValueError: if no prompt can be made: a system prompt that is too long, candidates that are alike.
    """
    if random_episodes < 1:
        raise ConfigError(f"--random_episodes is {random_episodes}; it must be 1 or more.")
    checkup = Checkup(data, module)
    checkup.world(random_episodes)
    if any(finding.problem for finding in checkup.findings):
        say("  The model is not looked at until this is mended.")
    else:
        with_model(checkup.model)
    show_findings(checkup.findings)
    if path is not None:
        record = plain({"findings": [finding._asdict() for finding in checkup.findings], **checkup.record})
        text = as_json(record, indent=1, allow_nan=False, default=str)
        Path(path).write_text(text + "\n", encoding="utf-8")
        say(f"The same as data: {path}")
    return checkup.findings


def plain(record: Any) -> Any:
    """The same with null for numbers that JSON cannot write, such as the interval of a single episode."""
    if isinstance(record, Mapping):
        return {name: plain(value) for name, value in record.items()}
    if isinstance(record, list | tuple):
        return [plain(value) for value in record]
    return None if isinstance(record, float) and not math.isfinite(record) else record


class Checkup:
    """Looks at one part after the other, shows it, and keeps what it found."""

    def __init__(self, data: RolloutDataModule, module: PolicyLearner) -> None:
        self.data, self.module = data, module
        self.findings: list[Finding] = []
        self.record: dict[str, Any] = {}
        self.amounts = Amounts.of(data)
        self.random = RandomPlay()

    def world(self, episodes: int) -> None:
        """The environment, its agent and its seed."""
        data = self.data
        self.random = play_at_random(
            data.make_env,
            data.agent,
            history=data.history,
            episodes=max(episodes, data.episodes_per_rollout or 0),
            turns=data.turns_per_rollout or 0,
            seed=data.seed,
        )
        fault = seed_fault(data.make_env, data.agent, range(data.seed, data.seed + SEEDS))
        self.findings += world_findings(data, self.random, fault)
        if hasattr(self.module, "gae_lambda"):  # generalized advantage estimation bootstraps on values; nothing else does
            gamma: Any = self.module.gamma
            finding = discount_finding(gamma, self.random, data.turns_per_rollout)
            self.findings += [] if finding is None else [finding]
        show_world(data, self.random, fault)
        self.record |= {"env": data.env, "agent": type(data.agent).__name__, "seed_honoured": fault is None}

    def model(self) -> None:
        """The model in it: prompts, play, and a step of learning."""
        data, module = self.data, self.module
        module.setup("fit")  # what a run would refuse, this does
        data.setup("fit")
        builder = data.context_builder("fit")
        limited = data.max_observation_tokens is not None
        finding = try_questions(builder, self.random, chooses=module.chooses, meant=limited)
        self.findings += [] if finding is None else [finding]
        if not module.speaks and self._history(builder, [self.random.longest]):
            say("  No rollout is tried until this is mended.")
            return
        trial = try_out(data, module, self.random)
        self._sight(trial)
        if module.speaks:
            most = max((reply.text for reply in trial.rollout.replies), key=len)
            spoken = [(observation, most) for observation, _ in self.random.longest]
            self._history(builder, [spoken, *map(_said, trial.episodes)])
        self._scores(trial)
        self._costs(trial)

    def _sight(self, trial: Trial) -> None:
        """A prompt, what the policy says to it, and an episode."""
        rollout, tokenizer = trial.rollout, self.module.tokenizer
        first = int(rollout.context_ids[0, 0])
        context = rollout.contexts[first]
        show_prompt(context, tokenizer)
        self.record["prompt"] = tokenizer.decode(list(context.prompt_ids))
        if rollout.candidate_logprobs is not None:
            chances = rollout.candidate_logprobs[first, : len(context.candidates)].exp().tolist()
            show_candidates(context, chances, float(rollout.context_values[first]), tokenizer)
            self.record["candidates"] = dict(zip(context.candidates, chances, strict=True))
        else:
            read = [self._read(reply.text, reply.choice) for reply in rollout.replies[:SHOWN_REPLIES]]
            show_replies(rollout, read, tokenizer)
            texts = [reply.text for reply in rollout.replies[:SHOWN_REPLIES]]
            self.record["replies"] = [{"text": text, "read": said} for text, said in zip(texts, read, strict=True)]
        show_episode(trial.episodes[0])
        self.record["episode"] = asdict(trial.episodes[0])

    def _read(self, text: str, choice: int) -> str:
        if choice >= 0:
            return "ends with its choice"
        parsed = self.data.agent.parse(text)
        return f"the action {parsed.action!r}" if parsed.ok else f"no action: {one_line(parsed.reason)[:200]}"

    def _scores(self, trial: Trial) -> None:
        returns = trial.returns
        rows: dict[str, Score | float | None] = {
            "this model, sampled": score(returns),
            "played at random": score(self.random.returns),
            **self.data.agent.baselines(),
        }
        show_scores(rows, trial.cut)
        self.record["scores"] = {name: asdict(row) if isinstance(row, Score) else row for name, row in rows.items()}
        finding = returns_finding([*self.random.returns, *(returns if trial.cut is None else ())])
        self.findings += [] if finding is None else [finding]

    def _history(self, builder: ContextBuilder, episodes: Sequence[Sequence[tuple[str, str]]]) -> bool:
        """Whether the prompts of these episodes, of observations and answers, are too long."""
        data, module = self.data, self.module
        if data.history == 0:
            return False
        candidates = {text for _, own in self.random.questions for text in own} if module.chooses else set()
        limit = module.context_length - builder.longest(candidates)
        finding = history_fits(builder, episodes, data.history, limit)
        self.findings += [] if finding is None else [finding]
        return finding is not None

    def _costs(self, trial: Trial) -> None:
        """Tokens, time and memory."""
        module, rollout = self.module, trial.rollout
        rate = None if module.chooses else trial.parse_rate
        counts: TokenCounts = count_tokens(rollout, module.context_length)
        show_tokens(counts, rate)
        whole: Estimate = estimate(self.amounts, trial, self.random, speaks=module.speaks)
        show_estimate(self.amounts, trial, whole, module.imitates)
        self.record |= {"parse_rate": rate, "tokens": asdict(counts), "rollout": asdict(whole)}
        if rate is not None:
            finding = parse_finding(rate, [reply.text for reply in rollout.replies], imitates=module.imitates)
            self.findings += [] if finding is None else [finding]


def _said(episode: Episode) -> list[tuple[str, str]]:
    return [(turn.observation_text, turn.response_text) for turn in episode.turns]
