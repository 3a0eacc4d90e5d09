"""The check from end to end: the environment first, then the model in it, then the findings."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lgym.cli.check import report
from lgym.cli.check.findings import (
    Finding,
    TurnTexts,
    constant_findings,
    discount_findings,
    history_findings,
    observation_findings,
    parse_findings,
    returns_findings,
    seed_findings,
)
from lgym.cli.check.random_play import RandomPlay, play_at_random, score, seed_fault
from lgym.cli.check.trial import count_tokens, estimate, try_out
from lgym.data import RolloutDataModule
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.modules import PolicyLearner
from lgym.plain_text import as_json
from lgym.terminal import say
from lgym.types import ConfigError

TRIED_SEEDS = 3


def check(
    data: RolloutDataModule,
    module: PolicyLearner,
    with_model: Callable[[Callable[[], None]], None],
    *,
    random_episodes: int,
    path: str | None = None,
) -> list[Finding]:
    """Prints what the model will see, and returns the findings.

    Args:
        data: the run's data module.
        module: the run's module, without its model as yet.
        with_model: runs a function once the model is built.
        random_episodes: episodes to play at random.
        path: a file to write the same to, as JSON.

    Raises:
        ConfigError: if no prompt can be made: a system prompt that is too long, candidates that are alike.
    """
    if random_episodes < 1:
        raise ConfigError(f"--random_episodes is {random_episodes}; it must be 1 or more.")
    checkup = Checkup(data, module)
    checkup.check_environment(random_episodes)
    if any(finding.problem for finding in checkup.findings):
        say("  The model is not looked at until this is mended.")
    else:
        with_model(checkup.check_model)
    report.show_findings(checkup.findings)
    if path is not None:
        record = json.dumps(
            {"findings": [f._asdict() for f in checkup.findings], **checkup.record}, default=str
        )
        finite = json.loads(
            record, parse_constant=lambda constant: None
        )  # the interval of one episode is infinite
        Path(path).write_text(as_json(finite, indent=1) + "\n", encoding="utf-8")
        say(f"The same as data: {path}")
    return checkup.findings


class Checkup:
    """Looks at one part after the other, prints it, and keeps findings and record."""

    def __init__(self, data: RolloutDataModule, module: PolicyLearner) -> None:
        self.data = data
        self.module = module
        self.findings: list[Finding] = []
        self.record: dict[str, Any] = {}
        self.random = RandomPlay()

    def check_environment(self, episodes: int) -> None:
        """Checks the environment, its agent and its reset seed."""
        data = self.data
        self.random = play_at_random(
            data.make_env,
            data.agent,
            history=data.history,
            episodes=max(episodes, data.episodes_per_rollout or 0),
            turns=data.turns_per_rollout or 0,
            seed=data.seed,
        )
        fault = seed_fault(data.make_env, data.agent, range(data.seed, data.seed + TRIED_SEEDS))
        self.findings += seed_findings(fault, data.group_size, data.turns_per_rollout)
        self.findings += constant_findings(self.random)
        if hasattr(self.module, "gae_lambda"):  # only generalized advantage estimation bootstraps on values
            gamma: Any = self.module.gamma
            self.findings += discount_findings(gamma, self.random, data.turns_per_rollout)
        report.show_environment(data, self.random, seed_honored=fault is None)
        self.record |= {"env": data.env, "agent": type(data.agent).__name__, "seed_honored": fault is None}

    def check_model(self) -> None:
        """Checks the model in the environment: prompts, play, and a step of learning."""
        data, module = self.data, self.module
        module.setup("fit")  # refuses what a run would refuse
        data.setup("fit")
        builder = data.prompt_builder("fit")
        limited = data.max_observation_tokens is not None
        self.findings += observation_findings(
            builder, self.random, chooses=module.policy.scores_candidates, limited=limited
        )
        if not module.policy.generates_text and self._check_history(builder, [self.random.longest]):
            say("  No rollout is tried until this is mended.")
            return
        trial = try_out(data, module, self.random)
        rollout, cut = trial.rollout, trial.cut
        self.record |= report.show_policy(trial, data.agent, module.tokenizer)
        self.record["episode"] = asdict(trial.episodes[0])
        if module.policy.generates_text:
            longest = max((response.text for response in rollout.responses), key=len)
            played = [
                [(t.observation_text, t.response_text) for t in episode.turns] for episode in trial.episodes
            ]
            self._check_history(builder, [[(text, longest) for text, _ in self.random.longest], *played])
        scores = {"this model, sampled": score(trial.returns), "played at random": score(self.random.returns)}
        self.record["scores"] = {**scores, **data.agent.reference_returns()}
        report.show_scores(self.record["scores"], cut)
        self.findings += returns_findings([*self.random.returns, *(trial.returns if cut is None else ())])
        rate = None if module.policy.scores_candidates else trial.parse_rate
        counts = count_tokens(rollout, module.context_length)
        whole = estimate(data, trial, self.random, generates_text=module.policy.generates_text)
        report.show_costs(data, trial, counts, whole, rate)
        self.record |= {"parse_rate": rate, "tokens": counts, "rollout": whole}
        if rate is not None:
            self.findings += parse_findings(
                rate, [response.text for response in rollout.responses], imitates=module.uses_sft
            )

    def _check_history(self, builder: PromptBuilder, episodes: Sequence[Sequence[TurnTexts]]) -> bool:
        data, module = self.data, self.module
        if data.history == 0:
            return False
        candidates = (
            {text for _, texts in self.random.questions for text in texts}
            if module.policy.scores_candidates
            else set()
        )
        limit = module.context_length - builder.longest(candidates)
        found = list(history_findings(builder, episodes, data.history, limit))
        self.findings += found
        return bool(found)
