"""The picture of tokens is made of what was fed and what was chosen."""

from __future__ import annotations

from helpers import runs, tiny
from helpers.letters import CONFIG
from lgym.callbacks.token_picture import shown_tokens
from lgym.types import TokenTrace


def turn(prompt, ids, mask, advantages):
    encode = tiny.tokenizer().encode
    return TokenTrace(tuple(encode(prompt)), tuple(encode(ids)), mask, tuple(-0.5 for _ in ids), advantages)


def test_tokens_are_told_apart():
    """A choice behind a forced cue, and a second prompt that goes on from the first turn: only what is new is
    shown."""
    first = turn("red", "x:b", (True, False, True), (1.5, 0.0, -2.0))
    second = turn("redx:b>go", "y", (True,), (0.25,))
    shown = shown_tokens([first, second], tiny.tokenizer())
    assert "".join(token.text for token in shown) == "redx:b>goy"
    kinds = [token.kind[0] for token in shown]  # prompt, sampled, forced
    assert "".join(kinds) == "pppsfspppS".lower()
    assert [token.advantage for token in shown if token.kind == "sampled"] == [1.5, -2.0, 0.25]
    assert all(token.advantage is None for token in shown if token.kind != "sampled")


def test_a_prompt_that_does_not_go_on_is_shown_whole():
    shown = shown_tokens(
        [turn("red", "x", (True,), (1.0,)), turn("blue", "y", (True,), (1.0,))], tiny.tokenizer()
    )
    assert "".join(token.text for token in shown) == "redxbluey"


def test_a_run_draws_it(tmp_path, model_folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    runs.lgym(
        "fit", tmp_path, model_folder, config, trainer__max_epochs=1, trainer__check_val_every_n_epoch=2
    )
    events = EventAccumulator(str(tmp_path / "version_0"), size_guidance={"images": 0})
    events.Reload()
    (image,) = events.Images("tokens")
    assert image.width == 1100
    assert image.height > 50
