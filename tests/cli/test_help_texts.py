"""`--help` in the words of a run of lgym."""

from __future__ import annotations

import pytest

from lgym.cli import main
from lgym.cli.help_texts import COMMANDS


@pytest.fixture
def helped(capsys):
    """The help of some arguments, as one line."""

    def run(*args):
        with pytest.raises(SystemExit) as stop:
            main([*args, "--help"])
        assert stop.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    return run


def test_the_subcommands_say_what_they_do(helped):
    """In place of Lightning's 'full optimization routine'."""
    text = helped()
    assert "configs/blackjack.yaml` trains" in text
    for description in COMMANDS.values():
        assert description in text


@pytest.mark.parametrize("command", ["fit", "check"])
def test_the_options_of_a_subcommand(helped, command):
    """Headings, lgym's words for Lightning's options, and none of those that no run of lgym needs."""
    text = helped(command)
    assert text.startswith(f"usage: lgym {command} [--config FILE] [--any.option VALUE ...]")
    for heading in (
        "Length, device and folder of the run",
        "The environment, its agent",
        f"Options of {command}",
    ):
        assert heading in text
    assert "Rollouts to play and learn from" in text
    assert "Environments played together" in text
    for foreign in (
        "barebones",
        "paramref",
        "overfit_batches",
        "weights_only",
        "A language model under training",
    ):
        assert foreign not in text
    own = {"fit": "or `last` for the newest run's", "check": "to look at instead of the untrained model"}
    assert own[command] in text


def test_what_help_leaves_out_is_taken(tmp_path, model_folder):
    """Hidden options are Lightning's, and stay settings."""
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--trainer.limit_val_batches=2", "--data.env=Echo-v0", "--print_config"])
    assert stop.value.code == 0
