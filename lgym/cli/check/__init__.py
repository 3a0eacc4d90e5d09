"""`lgym check`: what the model will see, and whatever would make training useless, before any training."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
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
from lgym.cli.check.trial import count_tokens, estimate, try_out
from lgym.data import RolloutDataModule
from lgym.data.random_play import RandomPlay, play_at_random, score, seed_fault
from lgym.modules import PolicyLearner
from lgym.plain_text import as_json
from lgym.terminal import say

TRIED_SEEDS = 3


@dataclass(eq=False)
class Checkup:
    """Looks at one part after the other, prints it, and keeps findings and record.

    Args:
        data: the run's data module.
        module: the run's module, without its model as yet.
        findings: problems and warnings, as they are found.
        record: the results, to be written as JSON.
        random: play without a model.
    """

    data: RolloutDataModule
    module: PolicyLearner
    findings: list[Finding] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    random: RandomPlay = field(default_factory=RandomPlay)

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
        policy = module.policy
        module.setup("fit")  # refuses what a run would refuse
        data.setup("fit")
        self.findings += observation_findings(
            data.prompt_builder("fit"),
            self.random,
            chooses=policy.scores_candidates,
            limited=data.max_observation_tokens is not None,
        )
        if not policy.generates_text and self._check_history([self.random.longest]):
            say("  No rollout is tried until this is mended.")
            return
        trial = try_out(data, module, self.random)
        texts = [response.text for response in trial.rollout.responses]
        self.record |= report.show_policy(trial, data.agent, module.tokenizer)
        self.record["episode"] = asdict(trial.episodes[0])
        if policy.generates_text:
            played = [[(t.observation_text, t.response_text) for t in e.turns] for e in trial.episodes]
            longest = max(texts, key=len)
            self._check_history([[(text, longest) for text, _ in self.random.longest], *played])
        scores = {
            "this model, sampled": score(trial.returns),
            "played at random": score(self.random.returns),
            **data.agent.reference_returns(),
        }
        report.show_scores(scores, trial.cut)
        self.findings += returns_findings(self.random.returns + (trial.returns if trial.cut is None else []))
        tokens = count_tokens(trial.rollout, module.context_length)
        costs = estimate(data, trial, self.random, generates_text=policy.generates_text)
        report.show_costs(data, trial, tokens, costs)
        self.record |= {"scores": scores, "parse_rate": trial.parse_rate, "tokens": tokens, "rollout": costs}
        if trial.parse_rate is not None:
            self.findings += parse_findings(trial.parse_rate, texts, imitates=module.uses_sft)

    def conclude(self, path: str | None) -> None:
        """Prints the findings, and writes everything to a file, as JSON, if there is one."""
        report.show_findings(self.findings)
        if path is not None:
            findings = [finding._asdict() for finding in self.findings]
            record = json.dumps({"findings": findings, **self.record}, default=str)
            # The interval of one episode is infinite, which JSON cannot say.
            finite = json.loads(record, parse_constant=lambda constant: None)
            Path(path).write_text(as_json(finite, indent=1) + "\n", encoding="utf-8")
            say(f"The same as data: {path}")

    def _check_history(self, episodes: Sequence[Sequence[TurnTexts]]) -> bool:
        if self.data.history == 0:
            return False
        builder = self.data.prompt_builder("fit")
        asked = self.random.questions if self.module.policy.scores_candidates else ()
        candidates = {text for _, texts in asked for text in texts}
        limit = self.module.context_length - builder.longest(candidates)
        found = list(history_findings(builder, episodes, self.data.history, limit))
        self.findings += found
        return bool(found)
