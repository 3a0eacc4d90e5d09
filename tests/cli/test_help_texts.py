"""`--help` in the words of a run of lgym."""

from __future__ import annotations

import subprocess
import sys

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


def test_the_list_of_commands_loads_no_library():
    """Torch, Lightning and transformers take four seconds; Python alone, with this list, a tenth of one."""
    code = "import sys; from lgym.cli import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert "lgym.cli.help_texts" in loaded
    assert not {"torch", "lightning", "transformers", "numpy"} & set(loaded.split())


def test_no_command_lists_them(capsys):
    """With status 2, since nothing was done."""
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert COMMANDS["fit"] in " ".join(capsys.readouterr().out.split())


def test_the_garbage_collector_is_back_at_work():
    """It rests while libraries are imported, also where an import fails."""
    code = (
        "import gc, sys, lgym.cli\n"
        "sys.modules['lightning.pytorch'] = None\n"
        "try: lgym.cli.main(['check'])\n"
        "except ImportError: print(gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr
