"""The last message of a run that fails."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jsonargparse import ArgumentError
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lgym import distributed
from lgym.plain_text import escape_control_chars, truncate_middle
from lgym.types import LgymError

MAX_MESSAGE = 10_000  # characters; a message may quote an observation

PEER_LOST = (
    "Process {rank} of the run ends, since another one has ended or cannot be reached; its message stands "
    "above, unless it was killed, as it is where memory runs out. The last checkpoint is whole: go on with "
    "--ckpt_path last.\n"
    "({error})"
)


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Context manager that ends the process with one message where lgym or the parser refuses something.

    Other errors, such as a `ValueError` of the user's own agent, keep their traceback; with `LGYM_DEBUG=1`
    all do.
    """
    try:
        yield
    except ArgumentError as error:
        message = _printable(_without_types(str(error)))
        _exit(f"lgym: {message}\n(`--help` behind the command lists every option.)", status=2)
    except (LgymError, MisconfigurationException, RuntimeError, ValueError) as error:
        refusal = None if os.environ.get("LGYM_DEBUG") else _refusal(error)
        if refusal is None:
            raise
        _exit(f"\nlgym: {refusal}\n(LGYM_DEBUG=1 shows where in the code.)", status=1)


def _refusal(error: BaseException) -> str | None:
    """The message of a refusal by lgym or Lightning, or of the loss of another process; `None` for other
    errors."""
    if isinstance(error, RuntimeError) and distributed.is_peer_failure(error):
        return PEER_LOST.format(rank=distributed.rank(), error=str(error).splitlines()[0][:200])
    while (
        type(error) is ValueError and error.__cause__ is not None
    ):  # jsonargparse wraps what a constructor raises
        error = error.__cause__
    return _printable(str(error)) if isinstance(error, LgymError | MisconfigurationException) else None


def _exit(message: str, status: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(status)


def _printable(message: str) -> str:
    return escape_control_chars(truncate_middle(message, MAX_MESSAGE))


def _without_types(message: str) -> str:
    noise = (
        "Does not validate against",
        "Subtypes:",
        "Errors:",
        "Given value type:",
        "Given value: {",  # a whole object, of which one entry is wrong
        "Given value: Namespace(",
        "Given value: NestedArg(",
        "Expected a <class 'NoneType'>",
    )
    lines = (line.strip().removeprefix("- ") for line in message.splitlines())
    return "\n  ".join(line for line in lines if line and not line.startswith(noise))
