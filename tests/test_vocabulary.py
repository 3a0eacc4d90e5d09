"""Retired words stay out of code, configurations and documentation; CHANGELOG.md lists their successors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATTERN = re.compile(
    r"""(?<!\w)(?:
      TextPPO | TokenLoss | TurnBatch | ReplyBatch | ReplyTable | ContextTable | ContextBuilder | Ledger
    | InformedPolicy | SpeakingPolicy | TaughtTurn | Said | Slot | Likelihoods | likelihoods\( | Imitation\(
    | SpokenActions | (?<!spaces\.)OneOf(?!`) | SeveralOf | AnyText | ObservationWords | PlayedTurn | PlainText
    | JsonLines | BestEpisodes | GracefulEnding | WholeCheckpointIO | TornCheckpointError | TokenTranscripts
    | normalise_by | normalisation | replies_per_forward | max_think_tokens | refill_groups | worker_timeout
    | imitation_size | transcripts_per_rollout | keep_return_at_least | sft_coef | going_on | foresight
    | well_formed | settle_layout | write_replies | context_ids | context_builder | repeated_keys | on_fault
    | steps_done | acting\(\) | data\.workers | lgym\.ranks
    | rollout/(?:truncated_rate | groups_without_signal | reward_variance_\w+ | distinct_contexts | play_seconds
        | response_length | action_information)
    | policy/logprob_gap
    | \w*(?:normalis|summaris|initialis|optimis|tokenis|generalis|discretis|synchronis|penalis)
        (?:e|ed|es|er|ers|ing|ation)
    | \w*(?:behaviour|honour|colour|favour)\w*
    )(?!\w)""",
    re.VERBOSE,
)
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml"}
PLACES = ("lgym", "tests", "scripts", "docs", "configs", "README.md", "CONTRIBUTING.md", "pyproject.toml")


def project_files():
    for place in PLACES:
        paths = [ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*")
        for path in paths:
            if path.suffix in SUFFIXES and "_build" not in path.parts and path != Path(__file__):
                yield path


def test_no_retired_word_is_used():
    """A second word for a thing makes readers look for a second thing."""
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{number}: {match[0]}"
        for path in project_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in PATTERN.finditer(line)
    ]
    assert not found, "\n".join(found)


def test_docstrings_begin_with_a_verb_or_a_noun():
    """A docstring that begins with a question word, or in the middle of a sentence, tells the reader nothing
    yet."""
    riddle = re.compile(r'"""(?:What|How|Whether|Where|Of|Within|As|Those)\b')
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{number}: {line.strip()}"
        for path in project_files()
        if path.suffix == ".py" and path.is_relative_to(ROOT / "lgym")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if riddle.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["by TextPPO", "normalised", "a Slot ", "colours", "loss.normalise_by: reply"]
)
def test_the_pattern_finds_retired_words(text):
    """A pattern that matches nothing would pass every file."""
    assert PATTERN.search(text)


@pytest.mark.parametrize(
    "text", ["Slots", "normalize", "OneOfMany", "behavior", "length_normalization: none"]
)
def test_the_pattern_leaves_other_words(text):
    """A pattern that matches too much would forbid today's words."""
    assert not PATTERN.search(text)
