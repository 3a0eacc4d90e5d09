"""What a check found, as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lgym.batch import Context, Rollout
from lgym.cli.check.findings import Finding
from lgym.cli.check.prompt_lengths import TokenCounts
from lgym.cli.check.random_play import RandomPlay, Score
from lgym.cli.check.trial import Amounts, Estimate, Trial
from lgym.data import RolloutDataModule
from lgym.terminal import escape_control_chars, format_tokens, format_turn, one_line, paint, probability_bars, say, use_color
from lgym.types import Episode

SHOWN_REPLIES = 3
SHOWN_CANDIDATES = 20
SHOWN_TURNS = 12


def heading(text: str) -> None:
    say(f"\n{paint(text, '1')}")


def show_world(data: RolloutDataModule, play: RandomPlay, seed_fault: str | None) -> None:
    heading(f"{data.env} in the words of {type(data.agent).__name__}")
    say(f"  seed honoured: {'no' if seed_fault else 'yes, the same episodes twice'}")
    say(
        f"  played at random: {len(play.returns)} episodes, {len(play.distinct)} turns in {play.seconds:.1f} s, "
        f"{play.distinct[-1]} distinct prompts"
    )


def show_prompt(context: Context, tokenizer: Any) -> None:
    marks = "shades" if use_color() else "│"
    heading(f"A prompt, {len(context.prompt_ids)} tokens ({marks} between tokens; nothing of it is the policy's)")
    say(format_tokens([tokenizer.decode([token]) for token in context.prompt_ids]))


def show_candidates(context: Context, probabilities: Sequence[float], value: float, tokenizer: Any) -> None:
    heading(f"What the policy makes of its candidates now ({len(context.candidates)})")
    chances = dict(zip(context.candidates, probabilities, strict=True))
    likeliest = sorted(range(len(chances)), key=lambda c: -probabilities[c])[:SHOWN_CANDIDATES]
    shown = {context.candidates[c]: chances[context.candidates[c]] for c in sorted(likeliest)}
    for line, c in zip(probability_bars(shown), sorted(likeliest), strict=True):
        ids = context.candidate_ids[c]
        say(f"{line}  {format_tokens([tokenizer.decode([i]) for i in ids], chosen=[True] * len(ids))}")
    if len(shown) < len(chances):
        say(f"  and {len(chances) - len(shown)} less likely ones")
    if not math.isnan(value):
        say(f"  state value {value:+.3f}")


def show_replies(rollout: Rollout, read: Sequence[str], tokenizer: Any) -> None:
    marks = "in green" if use_color() else "in [ ]"
    heading(f"Replies, sampled (tokens that the policy chose are {marks})")
    for reply, said in zip(rollout.replies, read, strict=False):
        say(format_tokens([tokenizer.decode([token]) for token in reply.ids], chosen=reply.mask))
        say(f"  → {said}{'' if reply.ended else '; cut off at the limit'}")


def show_episode(episode: Episode) -> None:
    heading(f"An episode (seed {episode.seed})")
    for turn in episode.turns[:SHOWN_TURNS]:
        for line in "\n".join(format_turn(turn)).split("\n"):
            say(f"  {line}")
    if len(episode.turns) > SHOWN_TURNS:
        say(f"  and {len(episode.turns) - SHOWN_TURNS} more turns")
    say(f"  return {episode.episode_return:+g}")


def show_scores(rows: dict[str, Score | float | None], cut: int | None) -> None:
    heading("Mean return per episode")
    width = max(map(len, rows))
    for name, row in rows.items():
        if isinstance(row, Score):
            say(f"  {one_line(name):<{width}}  {row.mean:+.4f} ± {row.ci95:.4f}  ({row.episodes} episodes)")
        else:
            say(f"  {one_line(name):<{width}}  {'unknown: none ended in time' if row is None else f'{row:+.4f}'}")
    if cut is not None:
        say(f"  The model's episodes were cut off after {cut} turns here, so that its score says little.")


def show_tokens(counts: TokenCounts, parse_rate: float | None) -> None:
    heading("Tokens a turn")
    say(
        f"  prompt {counts.prompt_mean:.1f}, at most {counts.prompt_most} of the {counts.context_length} that fit; "
        f"the first {counts.shared} are the same in all"
    )
    cut = f", {counts.cut_replies:.0%} cut off at the limit" if parse_rate is not None or counts.cut_replies else ""
    say(f"  answer {counts.reply_mean:.1f}{cut}")
    say(f"  distinct prompts: {counts.distinct_prompts} in {counts.turns} turns")
    if parse_rate is not None:
        say(f"  replies that name an action: {parse_rate:.1%}")


def show_estimate(amounts: Amounts, trial: Trial, whole: Estimate, imitates: bool) -> None:
    amount = f"{amounts.episodes} episodes" if amounts.episodes else f"{amounts.turns} turns"
    played = trial.rollout
    heading(f"A rollout of {amount}, about")
    say(f"  {whole.turns:,.0f} turns, {whole.distinct_prompts:,.0f} distinct prompts")
    say(f"  {duration(whole.play_seconds)} to play, {duration(whole.learn_seconds)} to learn from in "
        f"{amounts.update_epochs} passes{' (without what is imitated)' if imitates else ''}")  # fmt: skip
    if whole.memory_bytes > trial.moment_bytes:
        say(f"  {whole.memory_bytes / 1e9:.1f} GB of memory at most")
    say(
        f"  measured: {int(played.mask.sum())} turns with {len(played.contexts)} distinct prompts in "
        f"{played.play_seconds:.1f} s, one minibatch of {trial.step_size} {'turns' if trial.by_reply else 'prompts'} in "
        f"{trial.step_seconds:.1f} s, {trial.step_bytes / 1e9:.1f} GB; the rest is extrapolated, and rather too much: a "
        "whole rollout shares more"
    )


def show_findings(findings: Sequence[Finding]) -> None:
    say()
    for finding in findings:
        name = paint("problem", "1;31") if finding.problem else paint("warning", "1;33")
        say(f"{name}: {escape_control_chars(finding.text)}")
    problems = sum(finding.problem for finding in findings)
    say(f"{problems} problem{'s' * (problems > 1)} to mend before training." if problems else "Nothing stands in the way.")


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
