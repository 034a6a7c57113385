"""Our side of the pipe to an arm: start it, send it requests, and stop it while other arms are timed.

A process that dies, hangs or refuses raises `ArmFailed` with the end of its log.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .times import Build, command_of, environment_of

LOAD_LIMIT_S = 2400.0
"""The time limit of loading: PyTorch takes minutes to compile 28 layers on two cores; later its cache has them."""
_TAIL_CHARACTERS = 400
# `agentcompile.bench` when installed, `bench` when only the folder is there; sibling modules are found either way.
_BENCH = (__package__ or "bench.harness").rpartition(".")[0]


class ArmFailed(Exception):
    """An arm failed; the message is the reason that its row shows."""


def own_command(module: str, settings: Mapping[str, str]) -> list[str]:
    """Return the command that runs a module below `bench`, like ``harness.engines``, in our interpreter."""
    return command_of(f"{_BENCH}.{module}", settings)


def foreign_command(python: Path, module: str, settings: Mapping[str, str]) -> list[str]:
    """Return the command that runs a sibling module in another interpreter, which has none of our packages.

    The folder above `bench` goes to the end of its path, so that our modules hide none of its own.
    """
    above = Path(__file__).resolve().parents[2]
    run = f"runpy.run_module('bench.harness.{module}', run_name='__main__')"
    code = f"import runpy, sys; sys.path.append({str(above)!r}); {run}"
    return [*environment_of(settings), str(python), "-c", code]


class LiveArm:
    """One arm's process, stopped (SIGSTOP) from the end of one request to the start of the next."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.facts: Mapping[str, Any] = {}
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        self._pending = b""

    def load(self, request: Mapping[str, Any], limit_s: float) -> float:
        """Load the arm and return the seconds that it reports for loading.

        Raises:
            ArmFailed: the process ended or did not answer within the limit.
        """
        reply = self.ask(request, limit_s)
        self.facts = reply["facts"]
        return float(reply["load_s"])

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Send one request and return its reply.

        Raises:
            ArmFailed: the process ended or did not answer within the limit.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line(time.monotonic() + limit_s, limit_s)
        except BrokenPipeError:
            raise ArmFailed(self._reason()) from None
        self._signal(signal.SIGSTOP)
        reply: dict[str, Any] = json.loads(line)
        return reply

    @property
    def pid(self) -> int:
        """The id of the process that the arm runs in."""
        return self._process.pid

    def close(self) -> None:
        """Kill the process and whatever it started; may be called twice."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _line(self, deadline: float, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    raise ArmFailed(f"no answer within {limit_s:.0f} s")
                got = os.read(self._process.stdout.fileno(), 1 << 16)
                if not got:
                    raise ArmFailed(self._reason())
                self._pending += got
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _reason(self) -> str:
        code = self._process.wait()
        ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        lines = [line for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return f"{ended}: {lines[-1].strip()[-_TAIL_CHARACTERS:]}" if lines else ended

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def load_alone(
    name: str,
    build: Build,
    logs: Path,
    *,
    context: int,
    prompts: Sequence[int],
    command: Sequence[str] = (),
    **settings: str,
) -> tuple[LiveArm, float]:
    """Load an arm outside a trial, by a `command` of its own or in our interpreter; return it and the seconds it took.

    Raises:
        ArmFailed: the arm cannot be loaded.
    """
    settings |= {"HF_HUB_OFFLINE": "1", **build.settings}
    arm = LiveArm(name, command or own_command("harness.engines", settings), logs / f"{name}.log")
    request = {
        "arm": name,
        "model": str(build.model),
        "threads": build.threads,
        "device": build.target,
        "context": context,
        "prompts": list(prompts),
        "lock": str(build.lock),
        "gguf": str(logs / f"{build.model.name}.gguf"),
    }
    try:
        return arm, arm.load(request, LOAD_LIMIT_S)
    except ArmFailed:
        arm.close()
        raise
