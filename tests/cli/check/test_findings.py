"""Findings of a check: each names its mend, and none comes where nothing is wrong."""

from __future__ import annotations

from lgym.cli.check.findings import history_findings, returns_findings, seed_findings
from lgym.data.prompts.prompt_builder import PromptBuilder


def test_findings_say_what_to_change():
    """Each names its mend."""
    (grouped,), (alone,) = seed_findings("it", 8, None), seed_findings("it", 1, None)
    assert "data.group_size: 1" in grouped.text
    assert grouped.problem
    assert not alone.problem
    assert not list(seed_findings(None, 8, None))
    assert not list(returns_findings([1.0, 1.0, 2.0]))
    assert not list(returns_findings([1.0]))


def test_a_window_that_does_not_fit_is_found_where_it_is(tokenizer):
    """Turn 0 is short and the others long: only windows behind them are too long."""
    builder = PromptBuilder(tokenizer, "s", 10_000)
    episode = [("o", "a")] + [("o" * 50, "a")] * 5
    lengths = [
        len(builder.encode(builder.render(episode[max(0, t - 2) : t], episode[t][0]))) for t in range(6)
    ]
    assert lengths[3] == lengths[5] > lengths[2]
    assert not list(history_findings(builder, [episode], 2, lengths[3]))
    (finding,) = history_findings(builder, [episode], 2, lengths[3] - 1)
    assert "would be shortened" in finding.text
    assert "50%" in finding.text  # turns 3, 4 and 5 of 6
    assert "Set data.history: 1" in finding.text
    (finding,) = history_findings(builder, [episode[:1], episode[:1], episode[:4]], "full", lengths[3])
    assert "17%" in finding.text  # 1 of 6


def test_a_prompt_that_is_too_long_by_itself_is_told_so(tokenizer):
    """In the first turn, where there is no history yet, and later, where even none would not help."""
    builder = PromptBuilder(tokenizer, "s", 10_000)
    short, long = ("o", "a"), ("o" * 50, "a")
    limit = len(builder.encode(builder.render([short], "o")))  # of a short prompt with another before it
    alone = len(builder.encode(builder.render([], "o" * 50)))
    assert alone > limit
    told = f"without any earlier turn has {alone} tokens, and the model's context leaves {limit}"
    for episode in ([long], [short, short, long]):
        for history in (1, "full"):
            (finding,) = history_findings(builder, [episode], history, limit)
            assert finding.problem
            assert told in finding.text
