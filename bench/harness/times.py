"""Times that a user waits for on the command line: import, compile, second compile, replay, first token."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_COMPILE_LIMIT_S = 3600.0
_TOKEN_LIMIT_S = 120.0
_IMPORT = (
    "import time; begin = time.perf_counter(); import agentcompile; end = time.perf_counter(); "
    "import sys, json; print(json.dumps([end - begin, 'torch' in sys.modules]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Wall time of one command in s, or None and why there is none."""

    seconds: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A lock that exists or is to be compiled: its paths and the settings of its compilation."""

    model: Path
    lock: Path
    home: Path | None
    """The folder of store and trial database; None for the user's own."""
    threads: int
    target: str = "cpu"
    """The device, ``cpu`` or ``cuda:N``."""
    context: int = 0
    """Tokens of the KV cache; 0 for the default."""
    seconds: float = 0
    """Seconds that the search may spend; 0 for no limit."""
    budget: int = 0
    """Trials that the search may spend; 0 for the default."""
    choose: str = ""
    """The value of `--choose`, the rule by which kernels are chosen; empty for the default."""

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables for processes that use the lock."""
        home = {"AGENTCOMPILE_HOME": str(self.home)} if self.home else {}
        own = {"AGENTCOMPILE_THREADS": str(self.threads)} if self.target == "cpu" else {}
        return {**home, **own, "AGENTCOMPILE_MODEL": str(self.model), "AGENTCOMPILE_TARGET": self.target}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Import times of fresh processes in ms, and whether one of them imported PyTorch, too."""

    median_ms: float
    samples_ms: tuple[float, ...]
    with_torch: bool


def import_time(processes: int = 10) -> Imported:
    """Time `import agentcompile` in fresh processes, after one that fills the page cache."""
    samples, torch = [], False
    for _ in range(processes + 1):
        run = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, timeout=60, check=True)
        seconds, brought = json.loads(run.stdout)
        samples.append(seconds * 1e3)
        torch = torch or brought
    return Imported(median_ms=median(samples[1:]), samples_ms=tuple(samples[1:]), with_torch=torch)


def compile_once(build: Build, out: Path) -> Took:
    """Time `agentcompile compile` with the lock written to `out` and its log beside it."""
    given = {"context": build.context, "seconds": f"{build.seconds:g}", "budget": build.budget, "choose": build.choose}
    flags = [word for name, value in given.items() if value not in (0, "", "0") for word in (f"--{name}", str(value))]
    words = ["compile", "--out", str(out), *flags, "--quiet"]
    return _took(build, words, out.with_suffix(".log"))


def replay_once(build: Build) -> Took:
    """Time `agentcompile replay`, which rebuilds and validates the lock."""
    return _took(build, ["replay", str(build.lock), "--quiet"], build.lock.with_suffix(".replay.log"))


def first_token(build: Build) -> Took:
    """Time from the start of `agentcompile generate` to the first text beyond the prompt on its stdout."""
    text = "def main():"
    words = ["generate", str(build.lock), "--prompt", text, "--max-new-tokens", "64", "--quiet"]
    log = build.lock.with_suffix(".generate.log")
    begin = time.monotonic()
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command_of("agentcompile", build.settings), *words], stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        assert process.stdout is not None
        descriptor, seen = process.stdout.fileno(), b""
        with selectors.DefaultSelector() as ready:
            ready.register(descriptor, selectors.EVENT_READ)
            while len(seen) <= len(text) and ready.select(_TOKEN_LIMIT_S):
                got = os.read(descriptor, 4096)
                if not got:
                    break
                seen += got
        seconds = time.monotonic() - begin
        process.kill()
    if len(seen) <= len(text):
        return Took(seconds=None, reason=_last_line(log) or "nothing came out")
    return Took(seconds=seconds)


def command_of(module: str, settings: Mapping[str, str]) -> list[str]:
    """Return the command that runs a module in our interpreter with `settings` added to the environment."""
    return [*environment_of(settings), sys.executable, "-m", module]


def environment_of(settings: Mapping[str, str]) -> list[str]:
    """Return the words that run the command after them with `settings` added to its environment."""
    return ["env", *(f"{name}={value}" for name, value in settings.items())]


def _took(build: Build, words: Sequence[str], log: Path) -> Took:
    command = [*command_of("agentcompile", build.settings), *words]
    begin = time.monotonic()
    with log.open("wb") as output:
        try:
            ran = subprocess.run(command, stdout=output, stderr=output, timeout=_COMPILE_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return Took(seconds=None, reason=f"not done after {_COMPILE_LIMIT_S:.0f} s")
    seconds = time.monotonic() - begin
    if ran.returncode == 0:
        return Took(seconds=seconds)
    return Took(seconds=None, reason=f"exit code {ran.returncode}: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [""])[-1][-300:]
