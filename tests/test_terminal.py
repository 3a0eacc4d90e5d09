"""Terminal output: tokens with their borders, and text that cannot act on the terminal."""

from __future__ import annotations

from lgym.terminal import format_tokens


def test_tokens_show_their_borders_and_nothing_acts(monkeypatch):
    """Without colors by marks, with colors by shades; an escape is shown, not sent."""
    texts = ["a\x1b[31m", "b", "\n", "c"]
    chosen = [False, False, True, True]
    assert format_tokens(texts, chosen=chosen) == "a\\x1b[31m│b[⏎\n][c]"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    painted = format_tokens(texts, chosen=chosen)
    assert "\x1b[31m" not in painted
    assert painted.count("\x1b[48;5;") == 4
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in format_tokens(texts, chosen=chosen)
