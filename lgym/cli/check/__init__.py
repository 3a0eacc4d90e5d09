"""`lgym check`: what the model will see, and whatever would make training useless, before any training."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lgym.cli.check import report
from lgym.cli.check.action_findings import neglect_findings, parse_findings, space_findings
from lgym.cli.check.estimates import estimate, kv_cache_bytes
from lgym.cli.check.findings import (
    Finding,
    TurnTexts,
    constant_findings,
    discount_findings,
    history_findings,
    observation_findings,
    returns_findings,
    seed_findings,
)
from lgym.cli.check.learning_trial import learn_from
from lgym.cli.check.size_findings import duration_findings, length_findings
from lgym.cli.check.time_budget import CheckInterrupted, TimeBudget, interruptible
from lgym.cli.check.trial import Trial, count_tokens, first_answers, try_out
from lgym.data import RolloutDataModule
from lgym.data.exploration_choice import LONG_EPISODE
from lgym.data.random_play import RandomPlay, play_at_random, score, seed_fault
from lgym.envs.workers import BrokenEnvironmentError
from lgym.modules import LLMLearner
from lgym.plain_text import as_json
from lgym.terminal import say

TRIED_SEEDS = 3
RANDOM_FRACTION, RANDOM_SECONDS = 0.15, 2.0  # of the time, for random play
SEED_FRACTION, SEED_SECONDS = 0.25, 4.0  # of the time, until which further seeds are tried
PROMPT_FRACTION, PROMPT_SECONDS = 0.35, 4.0  # of the time, until which further prompts are measured


@dataclass(eq=False)
class Checkup:
    """Looks at one part after the other, prints it, and keeps findings and record.

    Args:
        data: the run's data module.
        module: the run's module, without its model as yet.
        budget: the time that all of it may take.
        findings: problems and warnings, as they are found.
        record: the results, to be written as JSON.
        random: play without a model.
        part: the part at hand, for a message.
        interrupted: why the check ended before its end; empty if it did not.
    """

    data: RolloutDataModule
    module: LLMLearner
    budget: TimeBudget
    findings: list[Finding] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    random: RandomPlay = field(default_factory=RandomPlay)
    part: str = "playing at random"
    interrupted: str = ""

    def run(self, episodes: int, with_model: Callable[[Callable[[], None]], None], path: str | None) -> None:
        """Checks environment and model, and concludes; at the end of the time, or at Ctrl-C, with what is
        known by then.

        Args:
            episodes: to play at random.
            with_model: calls a function with the model loaded.
            path: a file for the record, or `None`.
        """
        try:
            with interruptible(self.budget):
                self.check_environment(episodes)
                if any(finding.problem for finding in self.findings):
                    say("  The model is not looked at until this is mended.")
                else:
                    self.part = "loading the model"
                    with_model(self.check_model)
        except CheckInterrupted as reason:
            self.interrupted = f"{reason}, while {self.part}"
        self.conclude(path)

    def check_environment(self, episodes: int) -> None:
        """Checks the environment, its agent and its reset seed."""
        data, budget = self.data, self.budget
        self.record |= {"env": data.env, "agent": type(data.agent).__name__}
        try:
            self.random = play_at_random(
                data.make_env,
                data.agent,
                history=data.history,
                episodes=max(episodes, data.episodes_per_rollout or 0),
                turns=data.turns_per_rollout or 0,
                seed=data.seed,
                seconds=budget.until(RANDOM_FRACTION, at_most=RANDOM_SECONDS),
            )
            report.show_environment(data, self.random)
            self.part = "trying the reset seed"
            seconds = budget.until(SEED_FRACTION, at_most=SEED_SECONDS)
            seeds = range(data.seed, data.seed + TRIED_SEEDS)
            fault = seed_fault(data.make_env, data.agent, seeds, seconds)
        except BrokenEnvironmentError as error:
            self.findings.append(Finding(True, str(error)))
            return
        report.show_seed(honored=fault is None)
        self.findings += seed_findings(fault, data.group_size, data.turns_per_rollout)
        self.findings += constant_findings(self.random)
        self.findings += length_findings(data, self.random)
        if hasattr(self.module, "gae_lambda"):  # only generalized advantage estimation bootstraps on values
            gamma: Any = self.module.gamma
            self.findings += discount_findings(gamma, self.random, data.turns_per_rollout)
        self.record |= {"seed_honored": fault is None}

    def check_model(self) -> None:
        """Checks the model in the environment: prompts, play, and a step of learning."""
        data, module = self.data, self.module
        policy = module.policy
        self.part = "measuring prompts"
        module.setup("fit")  # refuses what a run would refuse
        data.setup("fit")
        self.findings += observation_findings(
            data.prompt_builder("fit"),
            self.random,
            chooses=policy.scores_candidates,
            limited=data.max_observation_tokens is not None,
            seconds=self.budget.until(PROMPT_FRACTION, at_most=PROMPT_SECONDS),
        )
        if not policy.generates_text and self._check_history([self.random.longest]):
            say("  No rollout is tried until this is mended.")
            return
        self.part = "asking the model for the first time"
        answers = first_answers(data, module)
        self.record |= report.show_policy(answers, data.agent, module.tokenizer)
        self.part = "playing"
        trial = try_out(data, module, self.random, answers, self.budget)
        self._check_play(trial)
        self.part = "learning"
        learned = learn_from(data, module, trial.rollout, self.budget)
        small_envs = trial.rollout.mask.shape[0]
        kv_bytes = [kv_cache_bytes(data, module, trial.rollout, n) for n in (data.num_envs, small_envs)]
        costs = estimate(
            data,
            trial,
            learned,
            self.random,
            kv_bytes=kv_bytes[0] - kv_bytes[1],
            generates_text=policy.generates_text,
        )
        report.show_costs(data, trial, learned, costs)
        self.findings += duration_findings(data, costs, policy.max_new_tokens)
        self.record |= {"rollout": costs}

    def _check_play(self, trial: Trial) -> None:
        """Checks the episodes that the model has played."""
        data, module = self.data, self.module
        generates_text = module.policy.generates_text
        reads_text = not module.policy.scores_candidates
        report.show_episode(trial.episodes[0])
        self.record["episode"] = asdict(trial.episodes[0])
        if generates_text:
            played = [[(t.observation_text, t.response_text) for t in e.turns] for e in trial.episodes]
            longest = max((response.text for response, _ in trial.responses), key=len)
            self._check_history([[(text, longest) for text, _ in self.random.longest], *played])
        scores = {
            "this model, sampled": score(trial.returns),
            "played at random": score(self.random.returns),
            **data.agent.reference_returns(),
        }
        report.show_scores(scores, trial.cut)
        self.findings += returns_findings(self.random.returns + (trial.returns if trial.cut is None else []))
        tokens = count_tokens(trial.rollout, module.context_length)
        parse_rate = trial.parse_rate if reads_text else None
        report.show_tokens(tokens, parse_rate)
        self.record |= {"scores": scores, "parse_rate": parse_rate, "tokens": tokens}
        if reads_text:
            with closing(data.make_env()) as env:
                space = env.action_space
            self.findings += parse_findings(trial.responses, data.agent, imitates=module.uses_sft(0))
            self.findings += space_findings(trial.responses, data.agent, space)
        elif self.random.mean_length >= LONG_EPISODE and not module.uses_sft(0):
            answers = zip(trial.rollout.turn_prompts(), trial.rollout.turn_responses(), strict=True)
            self.findings += neglect_findings(answers, data.agent.actions)

    def conclude(self, path: str | None) -> None:
        """Prints the findings, and writes everything to a file, as JSON, if there is one."""
        report.show_findings(self.findings, self.interrupted, self.budget.seconds)
        if path is not None:
            findings = [finding._asdict() for finding in self.findings]
            whole = {"findings": findings, "interrupted": self.interrupted or None, **self.record}
            record = json.dumps(whole, default=str)
            # The interval of one episode is infinite, which JSON cannot say.
            finite = json.loads(record, parse_constant=lambda constant: None)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
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
