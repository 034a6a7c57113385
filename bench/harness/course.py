"""One run of a recipe that times arms: its messages, how it stops and is resumed, and the result file it writes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from agentcompile.cli.exits import Stopped, Terminated
from agentcompile.evaluation.evaluator import WorkerEvaluator
from agentcompile.evaluation.machine import Machine, evaluator_of, this_machine
from agentcompile.ir.digest import SHORT, digest
from agentcompile.options import resolve, visible_devices
from agentcompile.system.gpus import Meter, find_driver

from .found import Samples
from .identity import WorkloadJob, identity_of
from .partial import OutOfTime, PartialFile, open_partial
from .records import nameless, revision
from .result import Case, SuiteResult, write_result, write_text
from .trial import Setup

T = TypeVar("T")
_PACKAGES = ("agentcompile", "torch", "transformers", "triton", "vllm", "llama-cpp-python")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OF_THE_RESUMED = ("--resume", "--retry-failed")


def add_cutting(parser: argparse.ArgumentParser, *, retries: bool = True) -> None:
    """Add the options of a run that can stop and be resumed: --minutes, --resume; with `retries`, --retry-failed."""
    parser.add_argument("--minutes", type=float, metavar="M", help="stop between rounds once M minutes have gone")
    parser.add_argument("--resume", action="store_true", help="go on from what a run that was cut left in the cache")
    if retries:
        parser.add_argument("--retry-failed", action="store_true", help="with --resume: try again what failed before")


class Course:
    """One run with its options, its machine and its deadline; what it can make again is in a folder, `cache`.

    The folder is that of --cache, else the one of this name in the user's cache.
    """

    def __init__(self, command: Sequence[str], asked: argparse.Namespace, target: str, cache: str = "bench") -> None:
        self._until_s = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes
        self._command, self._asked = tuple(command), asked
        self.machine = this_machine(resolve({"threads": asked.threads, "target": target}).options)
        self.begun = revision()
        self.cache = cache_of(asked, cache)

    def partial(
        self,
        jobs: Sequence[WorkloadJob],
        more: Mapping[str, object],
        *,
        rounds: int,
        processes: int,
        lock: Path | None = None,
    ) -> AbstractContextManager[PartialFile]:
        """Return the partial result of this run as a context manager that holds it.

        `more` are further settings that affect the result and so identify the run. Where results are written, which
        processes are kept quiet meanwhile and when the run stops do not identify it.
        """
        settings = {
            "device": self.machine.device,
            "seed": self._asked.seed,
            "rounds": rounds,
            "processes": processes,
            "threads": threads_of(self.machine),
            **more,
        }
        identity = identity_of(jobs, self.machine.target, self.begun, lock=lock, settings=settings)
        return open_partial(self.cache, identity, resume=self._asked.resume, until_s=self._until_s, say=say)

    def found(
        self, file: PartialFile, find: Callable[[Setup, WorkerEvaluator], T], *, cases: int = 1, **settings: Any
    ) -> T | None:
        """Return what `find` makes of what is not in `file` yet; None when the run's own minutes ended it early.

        Then it prints how many of the rounds of its `cases` are done and how to resume. `settings` are fields of the
        `Setup` besides those that every run has.

        Raises:
            Stopped: a signal ended the run; finished rounds are kept.
        """
        words = [word for word in self._command if word not in _OF_THE_RESUMED]
        goes_on = "go on with: " + shlex.join([*words, "--resume"])
        try:
            with (
                tempfile.TemporaryDirectory(prefix="bench.", ignore_cleanup_errors=True) as logs,
                evaluator_of(self.machine, self._asked.seed) as evaluator,
            ):
                given: dict[str, Any] = {"llama_python": None, "quiet": nullcontext, **settings}
                setup = Setup(
                    threads=threads_of(self.machine),
                    device=self.machine.device,
                    seed=self._asked.seed,
                    cache=file.path.parent,
                    logs=Path(logs),
                    bandwidth=lambda: evaluator.ceiling().dram_bytes_per_s,
                    say=say,
                    keep=file.keep,
                    pause=file.pause,
                    **given,
                )
                return find(setup, evaluator)
        except OutOfTime:
            done = sum(len(progress.outcome.rounds) for progress in file.content.models.values())
            rounds = cases * settings["rounds"] * settings["processes"]
            say(f"stopped after {self._asked.minutes:g} minutes with {done} of {rounds} rounds; {goes_on}")
            return None
        except KeyboardInterrupt as ended:
            number = ended.number if isinstance(ended, Terminated) else int(signal.SIGINT)
            raise Stopped(number, f"finished rounds are kept; {goes_on}") from None

    def write(
        self, file: PartialFile, cases: Sequence[Case], samples: Mapping[str, Samples], **more: Any
    ) -> tuple[SuiteResult, Path]:
        """Write a suite's or a ladder's result and, beside it, its single generations; return result and that path.

        Raises:
            AgentCompileError: a file cannot be written (environment).
        """
        result = SuiteResult(
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join(nameless(self._command)),
            revision=str(self.begun["revision"]),
            changed_since=bool(self.begun["changed_since"]),
            machine=self.machine.target,
            environment=environment(self.machine, threads_of(self.machine)),
            seed=self._asked.seed,
            resumed=file.content.resumed,
            cases=tuple(cases),
            **more,
        )
        beside = self._asked.out.with_suffix(".samples.json")
        write_result(self._asked.out, result)
        write_text(beside, json.dumps(samples, separators=(",", ":")) + "\n")
        return result, beside


def cache_of(asked: argparse.Namespace, name: str = "bench") -> Path:
    """Return the folder for what can be made again, made if missing: --cache, else `name` in the user's cache."""
    folder: Path = (asked.cache or resolve({}).options.cache / name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def threads_of(machine: Machine) -> int:
    """Return the number of threads of every arm: the target's on a CPU, one per allowed processor beside a GPU."""
    return machine.target.threads if machine.device == "cpu" else len(os.sched_getaffinity(0))


def say(text: str) -> None:
    """Print a line of progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def host(device: str) -> str:
    """Return a short digest of this machine and GPU; another machine of the kind, or a reboot, gives another one."""
    told = {"name": platform.node(), "boot": "", "gpu": ""}
    with suppress(OSError):
        told["boot"] = _BOOT.read_text(encoding="ascii").strip()
    if device != "cpu":
        told["gpu"] = Meter(device, visible_devices()).identity()
    return digest("bench-host/1", dict(told))[:SHORT]


def environment(machine: Machine, threads: int) -> dict[str, str]:
    """Return versions and settings by name; those that are not there are left out."""
    found = {"python": sys.version.split()[0], "threads": str(threads)}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    with suppress(OSError):
        found["governor"] = _GOVERNOR.read_text(encoding="ascii").strip()
    if machine.device != "cpu" and (driver := find_driver()) is not None:
        found["driver"] = driver.version
    return found
