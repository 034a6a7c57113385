"""The worker process's state before and after a candidate ran in it: what a kernel may not leave changed.

It covers rounding and flushing modes of every thread, signals, threads, descriptors, environment, directory, limits and
timers; and, around single launches, memory that can be executed. A worker in which something differs is not used again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import resource
import signal
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from agentcompile.ir.timing import Interval
from agentcompile.ir.trial import Check
from agentcompile.measure.rounds import Arm
from agentcompile.validate.endurance import Loop, MakeLoop
from agentcompile.worker.probes import RANK_WORDS, Probes
from agentcompile.worker.protocol import WrongOutput

CHECK = "process-state"
_MORE_MAPPINGS = 8
"""Mappings that a launch may add: the interpreter and PyTorch's allocator map memory at times, a kernel need not."""
_A_THREADS_SHARE = 1 << 15
"""Elements of an elementwise operator for which PyTorch uses another thread."""
_ENDING_S = 0.2
"""How long a thread that PyTorch no longer needs may take to end, in seconds."""
_EXECUTABLE = re.compile(r"^(\S+) (..x.) \S+ \S+ \S+ *(.*)$", re.MULTILINE)
"""An executable mapping's address range, rights and path in /proc/self/maps."""
_LIMITS = tuple(sorted(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")))
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
Buffers = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The parts of a process that a launch which only computes does not change; field names are shown to people."""

    floating_point: tuple[int, ...]
    blocked_signals: tuple[int, ...]
    signal_handlers: tuple[int, ...]
    environment: int
    threads: frozenset[int]
    descriptors: frozenset[str]
    directory: str
    limits: tuple[tuple[int, int], ...]
    timers: tuple[bool, ...]
    umask: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mappings:
    """The process's address space: how many mappings, and the executable ones that have no file or are writable."""

    count: int
    code: frozenset[str]
    clock: int = 0
    """A checksum of the vDSO, which is the code that tells the time."""


def take(probes: Probes) -> State:
    """Return the state now."""
    threads, handlers, environment = probes.state()
    rows = [threads[at : at + RANK_WORDS] for at in range(0, len(threads), RANK_WORDS)]
    return State(
        floating_point=tuple(number for row in rows for number in row[:2]),
        blocked_signals=tuple(row[2] for row in rows),
        signal_handlers=handlers,
        environment=environment,
        threads=_threads(),
        descriptors=frozenset(_descriptors()),
        directory=_directory(),
        limits=tuple(resource.getrlimit(which) for which in _LIMITS),
        timers=tuple(signal.getitimer(which)[0] > 0 for which in _TIMERS),
        umask=_umask(),
    )


def differences(before: State, after: State) -> list[str]:
    """Return what differs, in words."""
    found = []
    for field in fields(State):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            found.append(f"{field.name.replace('_', ' ')}{_told(old, new)}")
    return found


def mappings() -> Mappings:
    """Return the address space now; empty where the system does not show it."""
    try:
        count, code, clock = _mapped(Path("/proc/self/maps").read_bytes())
    except OSError:
        return Mappings(count=0, code=frozenset())
    return Mappings(count=count, code=code, clock=zlib.crc32(ctypes.string_at(*clock)) if clock else 0)


@functools.lru_cache(maxsize=1)  # most of the time nothing was mapped since the last look
def _mapped(maps: bytes) -> tuple[int, frozenset[str], tuple[int, int] | None]:
    """Return of /proc/self/maps the number of mappings, the code as in `Mappings`, and the vDSO's address and bytes."""
    text, code, clock = maps.decode(errors="replace"), set[str](), None
    for place, rights, path in _EXECUTABLE.findall(text):
        named = path.startswith("/") and not path.startswith(("/memfd:", "/dev/"))
        if "w" in rights or not (named or path in ("[vdso]", "[vsyscall]")):
            code.add(f"{place} {rights}")
        elif path == "[vdso]":
            begin, end = (int(word, 16) for word in place.split("-"))
            clock = begin, end - begin
    return text.count("\n"), frozenset(code), clock


class Watch:
    """A watch over the process while candidates run, made before their libraries are loaded and run constructors."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        if probes.awake != (names := _threads()) or not names:
            _wake()
            probes.awake = _threads()
        self._before = take(probes)
        self._mapped = mappings()
        self._launches, self._found = 0, list[str]()

    def rebase(self) -> None:
        """Take the present state as the one to compare with: only PyTorch has run."""
        self._before = take(self._probes)

    def check(self) -> Check:
        """Return what changed since then, as a check.

        PyTorch's pool of threads shrinks and grows by itself: an operator that takes fewer threads ends the others, and
        the next one starts new ones. So it is woken where the threads differ, and only more threads than before count.
        """
        now = take(self._probes)
        if now.threads != self._before.threads and self._no_more_threads():
            self._before = replace(self._before, threads=_threads())
            now = replace(now, threads=self._before.threads)
        found = [*self._found, *differences(self._before, now)]
        detail = f"left changed: {'; '.join(found)}" if found else ""
        return Check(name=CHECK, ok=not found, measured=float(len(found)), allowed=0.0, detail=detail)

    def _no_more_threads(self) -> bool:
        """Return whether there are no more threads than before, with all of PyTorch's; ending threads take a while."""
        _wake()
        end = time.monotonic() + _ENDING_S
        while more := len(_threads()) > len(self._before.threads):
            if time.monotonic() > end:
                break
            time.sleep(0.001)
        return not more

    def loaded(self) -> None:
        """Compare the address space right after a library was loaded."""
        self._compare(self._mapped, "by being loaded", own=64)

    def around(self, run: Callable[[Buffers], None]) -> Callable[[Buffers], None]:
        """Return `run` with a look at the address space around launches 1, 2, 4, 8 …, where what it maps shows."""

        def launch(buffers: Buffers) -> None:
            self._launches += 1
            if self._launches & (self._launches - 1):
                run(buffers)
            else:
                with self.looking(f"at launch {self._launches}"):
                    run(buffers)

        return launch

    def within(self, make: MakeLoop) -> MakeLoop:
        """Return `make`, whose loops compare the address space before and after every call of `run`."""
        return lambda buffers, turns: _LookedAt(make(buffers, turns), self)

    @contextlib.contextmanager
    def looking(self, when: str) -> Iterator[None]:
        """Compare the address space before and after the `with` block."""
        before = mappings()
        yield
        self._compare(before, when, own=_MORE_MAPPINGS)

    def _compare(self, before: Mappings, when: str, own: int) -> None:
        after = mappings()
        if after.code - before.code:
            self._found.append(f"executable memory mapped {when}")
        if after.clock != before.clock:
            self._found.append(f"the clock rewritten {when}")
        if after.count > before.count + own:
            self._found.append(f"{after.count - before.count} mappings more {when}")


class _LookedAt:
    """A loop that compares the address space around each `run`."""

    def __init__(self, loop: Loop, watch: Watch) -> None:
        self._loop, self._watch = loop, watch

    def run(self, rounds: int) -> None:
        with self._watch.looking("in a long loop of launches"):
            self._loop.run(rounds)

    def wrong(self) -> tuple[int, int]:
        return self._loop.wrong()


class Watched:
    """An arm whose samples must leave the process as it was; an arm that is not `checked` may change it."""

    def __init__(self, arm: Arm, watch: Watch, index: int, *, checked: bool) -> None:
        self._arm, self._watch, self._index, self._checked = arm, watch, index, checked

    def interval(self, batch: int) -> Interval:
        """Time the arm, then compare the process's state."""
        found = self._arm.interval(batch)
        if not self._checked:
            self._watch.rebase()
        else:
            require(self._watch, self._index)
        return found


def require(watch: Watch, index: int) -> None:
    """Check that arm `index` left the process as it was.

    Raises:
        WrongOutput: the process's state has changed.
    """
    if not (check := watch.check()).ok:
        raise WrongOutput(index, check)


def _wake() -> None:
    """Make PyTorch start all the threads that it will ever use."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        some = torch.ones(512, 512, dtype=dtype)
        (some @ some).add_(1.0)
    torch.ones(_A_THREADS_SHARE * max(torch.get_num_threads(), 32)).add_(1.0).sum()


def _told(old: object, new: object) -> str:
    if isinstance(old, frozenset) and isinstance(new, frozenset):
        return "".join(f" {sign}{len(some)}" for sign, some in (("+", new - old), ("−", old - new)) if some)
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        at = next(i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1])
        return f" [{at}]"
    return ""


def _threads() -> frozenset[int]:
    return frozenset(int(name) for name in _listed("/proc/self/task"))


def _listed(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(path)  # noqa: PTH208 - names alone, many times a second
    return []


def _descriptors() -> Iterator[str]:
    for name in _listed("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that listed the directory is closed
            yield f"{name} {os.readlink(f'/proc/self/fd/{name}')}"  # noqa: PTH115


def _directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""


def _umask() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Umask:"):
                return line
    return ""
