"""The command line: `lgym fit | validate | test | predict | check | new | play | serve --config FILE
[--any.option VALUE ...]`, and `lgym bench | export | push | report | sweep`.

Importing it is cheap: torch and Lightning, which take seconds, are loaded for a command, not for its `--help`
list.
"""

import gc
import sys
from importlib import import_module
from typing import Any

from lgym.cli import library_noise  # silences what libraries say while they are imported
from lgym.cli.help_texts import print_commands

COMMAND_LINE = "lgym.cli.command_line"
PROGRAMS = {name: f"lgym.cli.{name}" for name in ("bench", "export", "push", "report", "sweep")}
"""Commands about runs, whose options are no run's: each a module with a `main`."""


def main(args: list[str] | None = None) -> None:
    """Runs the command line; what lgym or the parser refuses ends it with one message and exit status 1 or
    2."""
    library_noise.silence_libraries()
    words = sys.argv[1:] if args is None else args
    if set(words) <= {"-h", "--help"}:
        print_commands()
        sys.exit(0 if words else 2)
    if words[:1] and words[0] in PROGRAMS:
        program = _load(PROGRAMS[words[0]])
        with _load("lgym.cli.errors").errors_as_messages():
            program.main(words[1:])
    else:
        _load(COMMAND_LINE).run(args)


def _load(name: str) -> Any:
    """A module of the command line. What libraries make while they are imported stays; Python's garbage
    collector would look at it many times over meanwhile, and once more at the program's end."""
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()
