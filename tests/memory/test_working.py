"""The window: which turns are summarized, and how much of the summary is shown."""

from __future__ import annotations

import pytest

from lgym.memory import RememberedTurn, WorkingMemory

TURNS = [RememberedTurn(f"room {number}", "go", 0.0) for number in (1, 2, 3)]


def told(turns):
    return " ".join(turn.observation_text for turn in turns)


def test_only_the_last_turns_are_summarized():
    assert WorkingMemory(turns=2).recent(TURNS, told) == "room 2 room 3"
    assert WorkingMemory(turns=9).recent(TURNS, told) == "room 1 room 2 room 3"


def test_there_is_nothing_to_summarize_in_the_first_turn():
    """An agent's `summarize` may take the last of the turns."""
    assert WorkingMemory().recent([], lambda turns: turns[-1].answer) == ""


def test_of_a_long_summary_the_end_is_shown():
    """`room 1 room 2` has 13 characters."""
    assert WorkingMemory(max_characters=13).recent(TURNS[:2], told) == "room 1 room 2"
    assert WorkingMemory(max_characters=12).recent(TURNS[:2], told) == "…om 1 room 2"
    assert WorkingMemory(max_characters=1).recent(TURNS[:2], told) == "…"


@pytest.mark.parametrize("settings", [{"turns": 0}, {"max_characters": 0}])
def test_settings_that_show_nothing_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} (are|is) 0"):
        WorkingMemory(**settings)
