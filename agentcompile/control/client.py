"""The client of a run's socket: sends a command to its compiler and waits for the reply.

Only the standard library, because the app imports this module.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentcompile.control.commands import LINE_BYTES, Command, Reply, line_of, reply_in
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError
from agentcompile.runs.folders import resuming

SOCKET = "control.sock"
"""The socket's name in the run directory; it is there while a compiler works on the run."""
PATH_BYTES = 107
"""The most bytes that the system accepts as the path of a socket (unix(7): 108 with the final NUL)."""


class NoCompilerError(AgentCompileError):
    """No process serves the run's socket: its compiler ended, died, or never began."""

    def __init__(self, run: Path) -> None:
        super().__init__(
            f"{run}: no compiler works on this run",
            exit_code=ExitCode.ENVIRONMENT,
            hint=f"resume it: {resuming(run)}",
        )


def send(run: Path, command: Command, *, timeout_s: float = 5.0) -> Reply:
    """Send a command to the compiler that works on the run directory `run`, and return its reply.

    Raises:
        NoCompilerError: no compiler works on the run.
        AgentCompileError: the compiler gave no valid reply within `timeout_s` (environment).
    """  # noqa: DOC501
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            with address(run) as path:
                connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise NoCompilerError(run) from error
        except OSError as error:
            raise _unanswered(run, error.strerror or str(error)) from error
        try:
            connection.sendall(line_of(command))
            return reply_in(received(connection))
        except TimeoutError as error:
            raise _unanswered(run, f"no reply within {timeout_s:g} s") from error
        except (OSError, CodecError) as error:
            raise _unanswered(run, str(error)) from error


def received(connection: socket.socket) -> bytes:
    """Return what the connection sends up to and including the first line break, or until it ends or grows too long."""
    data = b""
    while b"\n" not in data and len(data) <= LINE_BYTES:
        piece = connection.recv(4096)
        if not piece:
            break
        data += piece
    return data


@contextmanager
def address(run: Path) -> Iterator[str]:
    """Yield a path of the run's socket that the system accepts; a long one goes through its folder's descriptor."""
    path = run / SOCKET
    if len(os.fsencode(path)) <= PATH_BYTES:
        yield str(path)
        return
    folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def _unanswered(run: Path, why: str) -> AgentCompileError:
    return AgentCompileError(
        f"{run}: the compiler gave no reply: {why}",
        exit_code=ExitCode.ENVIRONMENT,
        hint="try again; `agentcompile runs status` says whether it works, and its process id can be ended",
    )
