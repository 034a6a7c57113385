"""The server of a run's socket while its compiler works: one line for a command, one line for the reply.

In: a run directory and a function that answers. Invariant: the socket belongs to its owner alone (0600), and is there
only while the run's lock is held; one that lies there otherwise was left by a compiler that died. The thread sleeps in
the kernel until a client connects, so that it never wakes inside a timed round.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from agentcompile.control.client import SOCKET, address, received
from agentcompile.control.commands import Command, Reply, command_in, line_of
from agentcompile.ir.codec import CodecError

PATIENCE_S = 2.0
"""Seconds that a client may take to send its line; other clients wait meanwhile."""

CarryOut = Callable[[Command], tuple[Reply, Callable[[], None]]]
"""A function that answers a command, and returns what is still to be done once the reply is sent."""


def nothing() -> None:
    """Do nothing after a reply."""


class Server:
    """The socket of one run; a context manager, around which the run's lock is held."""

    def __init__(self, run: Path, carry_out: CarryOut) -> None:
        """Begin to listen.

        Raises:
            OSError: the file system has no sockets.
        """
        self._path, self._carry_out = run / SOCKET, carry_out
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(self._socket.fileno(), 0o600)  # before bind: the file never has another mode (Linux)
            with address(run) as path:
                self._socket.bind(path)
            self._socket.listen(8)
        except BaseException:
            self._socket.close()
            raise
        self._ends = False
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and remove the socket; idempotent."""
        if self._ends:
            return
        self._ends = True
        self._path.unlink(missing_ok=True)
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._thread.join(PATIENCE_S)
        self._socket.close()

    def _serve(self) -> None:
        while not self._ends:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(PATIENCE_S)
                try:
                    self._answer(connection)
                except OSError:
                    continue  # the caller went away; what it asked for was done or not, as the events say

    def _answer(self, connection: socket.socket) -> None:
        try:
            reply, afterwards = self._carry_out(command_in(received(connection)))
        except CodecError as error:
            reply, afterwards = Reply(ok=False, text=f"not a command: {error}"), nothing
        try:
            connection.sendall(line_of(reply))
        finally:
            afterwards()
