"""The results of a check as a person reads them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lgym.agents.base import TextAgent
from lgym.cli.check.findings import Finding
from lgym.cli.check.learning_trial import LearningTrial
from lgym.cli.check.trial import FirstAnswers, Trial
from lgym.data import RolloutDataModule
from lgym.data.random_play import RandomPlay
from lgym.rollout import Prompt, Response
from lgym.terminal import (
    escape_control_chars,
    format_tokens,
    format_turn,
    one_line,
    paint,
    probability_bars,
    say,
    use_color,
)
from lgym.types import Episode, ParsedAction

MAX_CANDIDATES = 20
MAX_TURNS = 12


def _show(heading: str, *lines: str | None) -> None:
    """Prints a heading and the lines that there are."""
    say(f"\n{paint(heading, '1')}")
    for line in lines:
        if line is not None:
            say(line)


def show_environment(data: RolloutDataModule, play: RandomPlay) -> None:
    """Prints the results of random play."""
    lengths = f", of {min(play.lengths)} to {max(play.lengths)} turns" if play.lengths else ""
    _show(
        f"{data.env} in the words of {type(data.agent).__name__}",
        f"  played at random: {len(play.returns)} episodes{lengths}, {len(play.distinct)} turns in "
        f"{play.seconds:.1f} s, {play.distinct[-1]} distinct prompts",
    )


def show_seed(*, honored: bool) -> None:
    """Prints if the environment honors its reset seed."""
    say(f"  seed honored: {'yes, the same episodes twice' if honored else 'no'}")


def show_policy(answers: FirstAnswers, agent: TextAgent, tokenizer: Any) -> dict[str, Any]:
    """Prints a prompt and the policy's answers to it, and returns both."""
    prompt, responses = answers.prompt, answers.responses
    _show(
        f"A prompt, {len(prompt.token_ids)} tokens ({'shades' if use_color() else '│'} between tokens; "
        "nothing of it is the policy's)",
        format_tokens(tokenizer.decode([token]) for token in prompt.token_ids),
    )
    if responses[0].candidate_logprobs:
        shown = _show_candidates(prompt, responses[0].candidate_logprobs, answers.value, tokenizer)
    else:
        shown = _show_responses(responses, agent, tokenizer)
    return {"prompt": tokenizer.decode(list(prompt.token_ids)), **shown}


def show_episode(episode: Episode) -> None:
    """Prints the turns of an episode."""
    hidden = len(episode.turns) - MAX_TURNS
    _show(
        f"An episode (seed {episode.seed})",
        *("  " + format_turn(turn).replace("\n", "\n  ") for turn in episode.turns[:MAX_TURNS]),
        f"  and {hidden} more turns" if hidden > 0 else None,
        f"  return {episode.episode_return:+g}",
    )


def _show_candidates(
    prompt: Prompt, logprobs: Sequence[float], value: float, tokenizer: Any
) -> dict[str, Any]:
    """Prints the likeliest candidates with their probabilities and tokens, in the agent's order."""
    probabilities = dict(zip(prompt.candidates, map(math.exp, logprobs), strict=True))
    likeliest = sorted(probabilities, key=lambda text: -probabilities[text])[:MAX_CANDIDATES]
    shown = {text: p for text, p in probabilities.items() if text in likeliest}
    token_ids = dict(zip(prompt.candidates, prompt.candidate_ids, strict=True))
    tokens = ([tokenizer.decode([token]) for token in token_ids[text]] for text in shown)
    hidden = len(probabilities) - len(shown)
    _show(
        f"What the policy makes of its candidates now ({len(probabilities)})",
        *(
            f"{bar}  {format_tokens(texts, chosen=[True] * len(texts))}"
            for bar, texts in zip(probability_bars(shown), tokens, strict=True)
        ),
        f"  and {hidden} less likely ones" if hidden else None,
        None if math.isnan(value) else f"  state value {value:+.3f}",
    )
    return {"candidates": probabilities}


def _show_responses(responses: Sequence[Response], agent: TextAgent, tokenizer: Any) -> dict[str, Any]:
    _show(f"Responses, sampled (tokens that the policy chose are {'in green' if use_color() else 'in [ ]'})")
    record = []
    for response in responses:
        reading = "ends with its choice" if response.choice >= 0 else _reading(agent.parse(response.text))
        record.append({"text": response.text, "read": reading})
        texts = (tokenizer.decode([token]) for token in response.token_ids)
        say(format_tokens(texts, chosen=response.action_mask))
        say(f"  → {reading}{'' if response.finished else '; cut off at the limit'}")
    return {"responses": record}


def _reading(parsed: ParsedAction) -> str:
    return f"the action {parsed.action!r}" if parsed.ok else f"no action: {one_line(parsed.reason)[:200]}"


def show_scores(rows: Mapping[str, Any], cut: int | None) -> None:
    """Prints mean returns: scores, exact numbers, or `None` for an unknown one."""
    width = max(map(len, rows))
    _show(
        "Mean return per episode",
        *(f"  {one_line(name):<{width}}  {_score(row)}" for name, row in rows.items()),
        None
        if cut is None
        else f"  The model's episodes were cut off after {cut} turns here, so that its score says little.",
    )


def _score(row: Any) -> str:
    if isinstance(row, Mapping):
        return f"{row['mean']:+.4f} ± {row['ci95']:.4f}  ({row['episodes']} episodes)"
    return "unknown: none ended in time" if row is None else f"{row:+.4f}"


def show_tokens(counts: Mapping[str, float], parse_rate: float | None) -> None:
    """Prints the tokens of prompts and responses.

    Args:
        counts: of `count_tokens`.
        parse_rate: fraction of responses that name an action; `None` for a policy that chooses.
    """
    has_cut = parse_rate is not None or counts["cut_responses"]
    _show(
        "Tokens per turn",
        f"  prompt {counts['prompt_mean']:.1f}, at most {counts['prompt_most']} of the "
        f"{counts['context_length']} that fit; the first {counts['shared']} are the same in all",
        f"  response {counts['response_mean']:.1f}"
        + (f", {counts['cut_responses']:.0%} cut off at the limit" if has_cut else ""),
        f"  distinct prompts: {counts['distinct_prompts']} in {counts['turns']} turns",
        None if parse_rate is None else f"  responses that name an action: {parse_rate:.1%}",
    )


def show_costs(
    data: RolloutDataModule, trial: Trial, learned: LearningTrial, whole: Mapping[str, float]
) -> None:
    """Prints the costs of a whole rollout, and the measurements behind them.

    Args:
        data: the run's data module.
        trial: small rollouts.
        learned: steps of learning.
        whole: of `estimate`.
    """
    size = learned.steps[-1].size
    unit = "distinct responses" if learned.by_response else "prompts"
    calls = [call.prompts for piece in trial.pieces for call in piece.calls]
    turns, seconds = sum(piece.turns for piece in trial.pieces), sum(piece.seconds for piece in trial.pieces)
    amount = f"{data.update_epochs} passes"
    if data.replay is not None:
        amount = f"{data.replay.updates_per_rollout} steps from the replay buffer"
    larger = f", also to minibatches of {whole['minibatch']:.0f}" if size < whole["minibatch"] else ""
    _show(
        f"{_rollout_name(data)}, about",
        f"  {whole['turns']:,.0f} turns, {whole['distinct_prompts']:,.0f} distinct prompts",
        f"  {_duration(whole['play_seconds'])} to play, {_duration(whole['learn_seconds'])} to learn from in "
        f"{amount}, without turns to imitate",
        f"  {_duration(whole['evaluation_seconds'])} for an evaluation of {data.eval_episodes} episodes, "
        "greedy and sampled",
        f"  {whole['memory_bytes'] / 1e9:.1f} GB of memory at most"
        if whole["memory_bytes"] > learned.moment_bytes
        else None,
        f"  measured: {turns} turns with {sum(calls)} prompts to compute in {seconds:.1f} s, a minibatch of "
        f"{size} {unit} in {learned.steps[-1].seconds:.1f} s, {learned.step_bytes / 1e9:.1f} GB; the rest is "
        f"extrapolated{larger}",
    )


def _rollout_name(data: RolloutDataModule) -> str:
    if data.logged:
        return f"The {len(data.logged)} logged episodes"
    if data.episodes_per_rollout is not None:
        return f"A rollout of {data.episodes_per_rollout} episodes"
    return f"A rollout of {data.turns_per_rollout} turns"


def show_findings(findings: Sequence[Finding], interrupted: str, seconds: float) -> None:
    """Prints problems and warnings, and the number of problems.

    Args:
        findings: in the order in which they were found.
        interrupted: why the check ended before its end; empty if it did not.
        seconds: its time.
    """
    say()
    for finding in findings:
        name = paint("problem", "1;31") if finding.problem else paint("warning", "1;33")
        say(f"{name}: {escape_control_chars(finding.text)}")
    problems = sum(finding.problem for finding in findings)
    if interrupted:
        say(
            f"Stopped {interrupted}; what comes behind that was not looked at. --seconds {2 * seconds:g} "
            "gives it longer."
        )
    if problems:
        say(f"{problems} problem{'s' * (problems > 1)} to mend before training.")
    else:
        say(
            "Nothing stands in the way, as far as this went." if interrupted else "Nothing stands in the way."
        )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
