"""A real terminal for tests: a program on a pseudo-terminal, its keys and every byte that it wrote."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"
_CONTROL = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_][^\x1b]*\x1b\\|\x1b[ -/]*[0-~]"
)


class Terminal:
    """One program with a terminal of `columns` × `rows`. Use as a context manager; it is killed at the end."""

    def __init__(
        self, command: Sequence[str], *, columns: int = 80, rows: int = 24, env: Mapping[str, str] | None = None
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.modes = termios.tcgetattr(slave)
        self._slave = slave
        base = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "LC_ALL")}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**base, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})},
        )  # fmt: skip
        self.bytes = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)

    def hang_up(self) -> None:
        """Take the terminal away, as when its window is closed; it is not the controlling one, so no signal comes."""
        for end in (self._master, self._slave):
            os.close(end)
        self._master, self._slave = pty.openpty()

    def read(self, seconds: float = 0.1) -> None:
        """Take in what is written within `seconds`."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._master], [], [], left)[0]:
                return
            try:
                self.bytes += os.read(self._master, 1 << 16)
            except OSError:
                return

    def until(self, wanted: str, seconds: float = 90.0) -> None:
        """Wait until `wanted` was written, styles and line breaks aside; fails with what was."""
        end = time.monotonic() + seconds
        while wanted not in " ".join(self.text.split()):
            assert time.monotonic() < end, f"{wanted!r} never came; this did: {self.text[-2000:]}"
            assert self.process.poll() is None, f"it ended; this came: {self.text[-2000:]}"
            self.read()

    def press(self, keys: str, pause_s: float = 0.25) -> None:
        """Type keys one after another."""
        for key in keys:
            os.write(self._master, key.encode())
            self.read(pause_s)

    def mouse(self, column: int, row: int) -> None:
        """Click on a cell, counted from 1, as a terminal reports it that was asked for SGR coordinates."""
        for ending in "Mm":
            os.write(self._master, f"\x1b[<0;{column};{row}{ending}".encode())
        self.read()

    def end(self, seconds: float = 60.0) -> int:
        """Wait for its end while taking in what it says; its exit code, negative for a signal."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it goes on: {self.text[-2000:]}"
            self.read()
        self.read(0.3)
        return self.process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)

    @property
    def text(self) -> str:
        """All that was written without control sequences."""
        return _CONTROL.sub(b"", self.bytes).decode("utf-8", "replace")

    @property
    def restored(self) -> bool:
        """Whether the alternate screen was left, the cursor shown, and the line discipline is as it was."""
        left = self.bytes.rfind(LEAVE) > self.bytes.rfind(ENTER) >= 0
        shown = self.bytes.rfind(SHOW_CURSOR) > self.bytes.rfind(b"\x1b[?25l")
        return left and shown and termios.tcgetattr(self._slave)[3] == self.modes[3]


def app(*arguments: str) -> list[str]:
    """The app as a person starts it."""
    return [sys.executable, "-m", "agentcompile", "tui", *arguments]
