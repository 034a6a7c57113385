"""A stdout that takes nothing more: its reader has gone, or its disk is full.

It imports little, because a shell's completion imports it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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


class _Telling:
    """A stdout whose own errors say that it takes nothing, so that nobody takes them for another file's.

    They are no OSError, which argparse ignores when it prints help.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return int(self._said(lambda: self._stream.write(text)))

    def flush(self) -> None:
        self._said(self._stream.flush)

    @staticmethod
    def _said(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BrokenPipeError:
            raise
        except OSError as error:
            from agentcompile.cli.render import unwritable

            raise unwritable(error) from error


@contextmanager
def telling() -> Iterator[None]:
    """Let code that prints as it likes, or whose library does, end with a clear error where stdout takes nothing.

    Raises:
        AgentCompileError: stdout took not all that was written (environment).
        BrokenPipeError: the reader of stdout is gone.
        SystemExit: as the code inside raised it.
    """
    before, wrapped = sys.stdout, _Telling(sys.stdout)
    sys.stdout = wrapped
    try:
        yield
    except SystemExit:  # argparse has printed its help
        wrapped.flush()
        raise
    finally:
        sys.stdout = before
    wrapped.flush()


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
