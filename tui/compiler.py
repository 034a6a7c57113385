"""The compiler as a process: it is started in a group of its own, so that it outlives the app and its terminal."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from agentcompile.checkpoint.names import is_here
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import clean, decode
from agentcompile.ir.codec import CodecError
from agentcompile.runs import progress
from agentcompile.runs.session import environment_error

from .feed import STDERR
from .scene import Replay

BEGINS = "$ agentcompile "
"""How the line begins that tells a compiler's stderr from that of the one before it."""
FULL_BYTES = 64 << 10
"""Room on a disk below which a compiler that ended without a word is taken to have filled it."""
SAID = 200
"""Lines of a replay's output that are kept."""


def headless(arguments: Sequence[str]) -> list[str]:
    """Return the command line of this same installation."""
    return [sys.executable, "-m", "agentcompile", *arguments]


def start(run: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a compiler that works in `run`; its stderr goes to a file there.

    Raises:
        AgentCompileError: the folder cannot be written (environment).
    """  # noqa: DOC501, RUF100
    try:
        run.mkdir(parents=True, exist_ok=True)
        with (run / STDERR).open("ab", buffering=0) as said:
            said.write(f"{BEGINS}{shlex.join(arguments)}\n".encode())
            return subprocess.Popen(
                headless(arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
    except OSError as error:
        raise environment_error(error, run) from error


def end(process: subprocess.Popen[bytes] | None) -> None:
    """Ask a process of ours and its group to end; do nothing when it has ended."""
    if process is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def why_gone(run: Path, said: Sequence[str]) -> str:
    """Return why a compiler ended that did not write the reason into its run; empty when nothing tells.

    The reason is seen from outside: in its stderr, whose lines are `said`, or in the room on its disk.
    """
    last = next((at for at in reversed(range(len(said))) if said[at].startswith(BEGINS)), -1)
    if errors := [text for text in said[last + 1 :] if text.startswith(_ERRORS)]:
        return " ".join(errors)
    try:
        free = shutil.disk_usage(run).free
    except OSError as error:
        return environment_error(error, run).message
    return f"the disk is full: free some space for {run}" if free < FULL_BYTES else ""


_ERRORS = ("error: ", "hint: ")
"""How the command line begins the lines of an error."""
_SAID = 2_000
"""Characters of a verb's stderr that are read."""


class LockRunner:
    """A process of `agentcompile replay`, whose events are folded as they come."""

    def __init__(self, arguments: Sequence[str], replay: Replay) -> None:
        self._replay = replay
        self._said: list[str] = []
        self._state = progress.State()
        self._rest = {"out": b"", "err": b""}
        try:
            self._process = subprocess.Popen(
                headless(arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise environment_error(error, Path(sys.executable)) from error
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def poll(self) -> Replay:
        """Return how far it is."""
        code = self._process.poll()
        for line in self._lines("out"):
            try:
                self._state = progress.apply(self._state, decode(json.loads(line)))
            except (ValueError, CodecError):
                self._said.append(clean(line))
        self._said += [clean(line) for line in self._lines("err")]
        del self._said[:-SAID]
        return Replay(what=self._replay.what, state=self._state, exit_code=code, said=tuple(self._said))

    def _lines(self, name: str) -> list[str]:
        stream = self._process.stdout if name == "out" else self._process.stderr
        assert stream is not None
        data = self._rest[name]
        while piece := stream.read(1 << 16):
            data += piece
        *lines, self._rest[name] = data.split(b"\n")
        return [text for line in lines if (text := line.decode("utf-8", "replace").strip())]

    def end(self) -> None:
        """End the process with its group, and close its pipes."""
        end(self._process)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


RunVerb = Callable[[Sequence[str]], "tuple[int, str, str]"]
"""Runs a verb of the command line in a process, and returns its exit code, stdout and stderr."""


def run_verb(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run a verb of this installation in a process of its own, because it may import what a screen does not.

    Raises:
        AgentCompileError: no process can be started (environment).
    """  # noqa: DOC501, RUF100
    try:
        done = subprocess.run(
            headless(arguments), stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True
        )
    except OSError as error:
        text = f"no process can be started: {error.strerror or error}"
        raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint="end other processes") from error
    return done.returncode, done.stdout, done.stderr


def refused(code: int, said: str) -> str:
    """Return why a verb ended with an exit code other than 0, by what it `said` on stderr."""
    lines = [line for line in clean(said, _SAID, lines=True).splitlines() if line.startswith(_ERRORS)]
    return "; ".join(lines) or f"it ended with exit code {code}"


OPENERS = ("xdg-open", "open")
"""Programs that open a file as a person's desktop would."""
REPORT = "report.html"
"""In the run directory: the run as one page, which the app writes before it opens it."""


def show(path: Path) -> threading.Thread | None:
    """Open a file beside the terminal; return what waits for the program that does, None where there is none."""
    opener = next((found for name in OPENERS if (found := shutil.which(name))), "")
    if not opener:
        return None
    try:
        process = subprocess.Popen(
            [opener, str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None
    waits = threading.Thread(target=process.wait, daemon=True)
    waits.start()
    return waits


def model_flags(model: str) -> list[str]:
    """Return the flag `--model` for a lock whose run knows where its checkpoint is; none otherwise."""
    return ["--model", model] if model and is_here(model) else []


def lock_lines(path: Path) -> tuple[str, ...]:
    """Return the lines of a lock.

    Raises:
        AgentCompileError: the file cannot be read.
    """
    try:
        return tuple(clean(path.read_text(encoding="utf-8"), 2_000_000, lines=True).split("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise AgentCompileError(f"{path}: unreadable: {error}", hint="compile again, or restore it") from error
