"""The results of a check as a person reads them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lgym.agents.base import TextAgent
from lgym.cli.check.findings import Finding
from lgym.cli.check.random_play import RandomPlay
from lgym.cli.check.trial import Trial
from lgym.data import RolloutDataModule
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

MAX_REPLIES = 3
MAX_CANDIDATES = 20
MAX_TURNS = 12


def _heading(text: str) -> None:
    say(f"\n{paint(text, '1')}")


def show_environment(data: RolloutDataModule, play: RandomPlay, *, seed_honored: bool) -> None:
    """Prints the results of random play."""
    _heading(f"{data.env} in the words of {type(data.agent).__name__}")
    say(f"  seed honored: {'yes, the same episodes twice' if seed_honored else 'no'}")
    say(
        f"  played at random: {len(play.returns)} episodes, {len(play.distinct)} turns in {play.seconds:.1f} "
        f"s, {play.distinct[-1]} distinct prompts"
    )


def show_policy(trial: Trial, agent: TextAgent, tokenizer: Any) -> dict[str, Any]:
    """Prints a prompt, the policy's answers to it and an episode; returns the prompt and the answers."""
    rollout, episode = trial.rollout, trial.episodes[0]
    responses = rollout.turn_responses()
    prompt = rollout.turn_prompts()[0]
    marks = "shades" if use_color() else "│"
    _heading(
        f"A prompt, {len(prompt.token_ids)} tokens ({marks} between tokens; nothing of it is the policy's)"
    )
    say(format_tokens(tokenizer.decode([token]) for token in prompt.token_ids))
    answers: dict[str, Any]
    if responses[0].candidate_logprobs:
        probabilities = map(math.exp, responses[0].candidate_logprobs)
        answers = {"candidates": dict(zip(prompt.candidates, probabilities, strict=True))}
        _show_candidates(prompt, answers["candidates"], float(rollout.values[0, 0]), tokenizer)
    else:
        answers = {"replies": _show_replies(responses[:MAX_REPLIES], agent, tokenizer)}
    _heading(f"An episode (seed {episode.seed})")
    for turn in episode.turns[:MAX_TURNS]:
        say("  " + format_turn(turn).replace("\n", "\n  "))
    if len(episode.turns) > MAX_TURNS:
        say(f"  and {len(episode.turns) - MAX_TURNS} more turns")
    say(f"  return {episode.episode_return:+g}")
    return {"prompt": tokenizer.decode(list(prompt.token_ids)), **answers}


def _show_candidates(prompt: Prompt, chances: Mapping[str, float], value: float, tokenizer: Any) -> None:
    """Prints the likeliest candidates with their probabilities and tokens, in the agent's order."""
    _heading(f"What the policy makes of its candidates now ({len(chances)})")
    likeliest = sorted(chances, key=lambda text: -chances[text])[:MAX_CANDIDATES]
    shown = {
        text: ids
        for text, ids in zip(prompt.candidates, prompt.candidate_ids, strict=True)
        if text in likeliest
    }
    for line, ids in zip(
        probability_bars({text: chances[text] for text in shown}), shown.values(), strict=True
    ):
        say(f"{line}  {format_tokens([tokenizer.decode([i]) for i in ids], chosen=[True] * len(ids))}")
    if len(shown) < len(chances):
        say(f"  and {len(chances) - len(shown)} less likely ones")
    if not math.isnan(value):
        say(f"  state value {value:+.3f}")


def _show_replies(replies: Sequence[Response], agent: TextAgent, tokenizer: Any) -> list[dict[str, str]]:
    _heading(f"Replies, sampled (tokens that the policy chose are {'in green' if use_color() else 'in [ ]'})")
    read = []
    for reply in replies:
        reading = "ends with its choice"
        if reply.choice < 0:
            parsed = agent.parse(reply.text)
            no_action = f"no action: {one_line(parsed.reason)[:200]}"
            reading = f"the action {parsed.action!r}" if parsed.ok else no_action
        read.append({"text": reply.text, "read": reading})
        say(format_tokens([tokenizer.decode([token]) for token in reply.token_ids], chosen=reply.action_mask))
        say(f"  → {reading}{'' if reply.finished else '; cut off at the limit'}")
    return read


def show_scores(rows: Mapping[str, Any], cut: int | None) -> None:
    """Prints mean returns: scores, exact numbers, or `None` for an unknown one."""
    _heading("Mean return per episode")
    width = max(map(len, rows))
    for name, row in rows.items():
        if isinstance(row, Mapping):
            shown = f"{row['mean']:+.4f} ± {row['ci95']:.4f}  ({row['episodes']} episodes)"
        else:
            shown = "unknown: none ended in time" if row is None else f"{row:+.4f}"
        say(f"  {one_line(name):<{width}}  {shown}")
    if cut is not None:
        say(f"  The model's episodes were cut off after {cut} turns here, so that its score says little.")


def show_costs(
    data: RolloutDataModule,
    trial: Trial,
    counts: Mapping[str, float],
    whole: Mapping[str, float],
    rate: float | None,
) -> None:
    """Prints the tokens of prompts and answers, the costs of a whole rollout, and the measurements behind
    them.

    Args:
        data: the run's data module.
        trial: the measurements.
        counts: of `count_tokens`.
        whole: of `estimate`.
        rate: fraction of replies that name an action; `None` for a policy that chooses.
    """
    _heading("Tokens per turn")
    say(
        f"  prompt {counts['prompt_mean']:.1f}, at most {counts['prompt_most']} of the "
        f"{counts['context_length']} that fit; the first {counts['shared']} are the same in all"
    )
    has_cut = rate is not None or counts["cut_replies"]
    cut = f", {counts['cut_replies']:.0%} cut off at the limit" if has_cut else ""
    say(f"  answer {counts['reply_mean']:.1f}{cut}")
    say(f"  distinct prompts: {counts['distinct_prompts']} in {counts['turns']} turns")
    if rate is not None:
        say(f"  replies that name an action: {rate:.1%}")
    episodes, played = data.episodes_per_rollout, trial.rollout
    _heading(
        f"A rollout of {f'{episodes} episodes' if episodes else f'{data.turns_per_rollout} turns'}, about"
    )
    say(f"  {whole['turns']:,.0f} turns, {whole['distinct_prompts']:,.0f} distinct prompts")
    say(
        f"  {_duration(whole['play_seconds'])} to play, {_duration(whole['learn_seconds'])} to learn from in "
        f"{data.update_epochs} passes, without turns to imitate"
    )
    if whole["memory_bytes"] > trial.moment_bytes:
        say(f"  {whole['memory_bytes'] / 1e9:.1f} GB of memory at most")
    say(
        f"  measured: {int(played.mask.sum())} turns with {len(played.prompts)} distinct prompts in "
        f"{played.seconds:.1f} s, one minibatch of {trial.step_size} "
        f"{'turns' if trial.by_reply else 'prompts'} in {trial.step_seconds:.1f} s, "
        f"{trial.step_bytes / 1e9:.1f} GB; the rest is extrapolated, and rather too much: a whole rollout "
        "shares more"
    )


def show_findings(findings: Sequence[Finding]) -> None:
    """Prints problems and warnings, and the number of problems."""
    say()
    for finding in findings:
        name = paint("problem", "1;31") if finding.problem else paint("warning", "1;33")
        say(f"{name}: {escape_control_chars(finding.text)}")
    problems = sum(finding.problem for finding in findings)
    say(
        f"{problems} problem{'s' * (problems > 1)} to mend before training."
        if problems
        else "Nothing stands in the way."
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
