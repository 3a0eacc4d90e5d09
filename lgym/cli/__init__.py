"""The command line: `lgym fit | validate | test | predict | check | new | play --config FILE [--any.option
VALUE ...]`.

Importing it is cheap: torch and Lightning, which take seconds, are loaded for a command, not for its `--help`
list.
"""

import gc
import sys
from collections.abc import Callable
from importlib import import_module

from lgym.cli.help_texts import print_commands

COMMAND_LINE = "lgym.cli.command_line"


def main(args: list[str] | None = None) -> None:
    """Runs the command line; what lgym or the parser refuses ends it with one message and exit status 1 or
    2."""
    words = sys.argv[1:] if args is None else args
    if set(words) <= {"-h", "--help"}:
        print_commands()
        sys.exit(0 if words else 2)
    _load()(args)


def _load() -> Callable[[list[str] | None], None]:
    """The command line itself. What libraries make while they are imported stays; Python's garbage collector
    would look at it many times over meanwhile, and once more at the program's end."""
    if COMMAND_LINE in sys.modules:
        return sys.modules[COMMAND_LINE].run
    gc.disable()
    try:
        return import_module(COMMAND_LINE).run
    finally:
        gc.freeze()
        gc.enable()
