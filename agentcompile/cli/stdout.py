"""A stdout that takes nothing more: its reader has gone, or its disk is full.

It imports little, because a shell's completion imports it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable


def flushed(call: Callable[[], int]) -> int:
    """Run what writes to stdout and return its exit code; when that is 0, the code of a stdout that took not all.

    `call` writes to stdout alone, and handles all other errors itself.
    """
    try:
        code = call()
    except BrokenPipeError:
        forget()
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _told(error)
    if code == 0:
        return unwritten()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # what failed was said already
        forget()
    return code


def unwritten() -> int:
    """Return 0 if stdout takes what it buffers; else say so, discard that, and return the exit code of the failure.

    What stays in the buffer would fail again at the interpreter's exit, which complains.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        forget()
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _told(error)
    except ValueError:  # closed
        return 0
    return 0


def _told(error: OSError) -> int:
    from agentcompile.cli.render import complain, unwritable

    forget()
    failure = unwritable(error)
    complain(failure.message, failure.hint)
    return int(failure.exit_code)


def forget() -> None:
    """Discard what stdout still buffers, and all that is written to it from now on."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
