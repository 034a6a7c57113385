"""The worker's process before and after a candidate ran in it: what a kernel may not leave changed.

Rounding and flushing modes of every thread, signals, threads, descriptors, environment, directory, limits and timers;
and, around single launches, memory that can be executed. A worker in which something differs is not used again.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from agentcompile.ir.timing import Interval
from agentcompile.ir.trial import Check
from agentcompile.measure.rounds import Arm
from agentcompile.validate.endurance import Loop, MakeLoop
from agentcompile.worker.probes import RANK_WORDS, Probes
from agentcompile.worker.wrong import WrongOutput

CHECK = "process-state"
_MORE_MAPPINGS = 8
"""That a launch may add: the interpreter and PyTorch's allocator map memory now and then, a kernel has no need to."""
_EXECUTABLE = re.compile(r"^(\S+) (..x.) \S+ \S+ \S+ *(.*)$", re.MULTILINE)
"""Of a mapping that can be executed: place, rights and path."""
_LIMITS = tuple(sorted(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")))
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
Buffers = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is the same before and after a launch that only computes. A field's name says it to people."""

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
    """The process's address space: how many mappings, and those of no file, or writable, that can be executed."""

    count: int
    code: frozenset[str]


def take(probes: Probes) -> State:
    """The state now."""
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
    """What differs, in words."""
    found = []
    for field in fields(State):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            found.append(f"{field.name.replace('_', ' ')}{_told(old, new)}")
    return found


def mappings() -> Mappings:
    """The address space now; empty where the system does not tell."""
    count, code = 0, set[str]()
    with contextlib.suppress(OSError):
        text = Path("/proc/self/maps").read_bytes().decode(errors="replace")
        count = text.count("\n")
        for place, rights, path in _EXECUTABLE.findall(text):
            named = path.startswith("/") and not path.startswith(("/memfd:", "/dev/"))
            if (not named or "w" in rights) and path not in ("[vdso]", "[vsyscall]"):
                code.add(f"{place} {rights}")
    return Mappings(count=count, code=frozenset(code))


class Watch:
    """Watches one candidate, or the arms of one comparison. It is made before their libraries are loaded, since what
    a library constructs runs then."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        if probes.awake != (names := _threads()) or not names:
            _wake()
            probes.awake = _threads()
        self._before = take(probes)
        self._mapped = mappings()
        self._launches, self._found = 0, list[str]()

    def rebase(self) -> None:
        """From now on this is how it was: PyTorch alone has run."""
        self._before = take(self._probes)

    def check(self) -> Check:
        """What changed since, as a check."""
        found = [*self._found, *differences(self._before, take(self._probes))]
        detail = f"left changed: {'; '.join(found)}" if found else ""
        return Check(name=CHECK, ok=not found, measured=float(len(found)), allowed=0.0, detail=detail)

    def loaded(self) -> None:
        """Look at the address space right after a library was loaded."""
        self._compare(self._mapped, "by being loaded", own=64)

    def around(self, run: Callable[[Buffers], None]) -> Callable[[Buffers], None]:
        """`run`, with a look at the address space before and after launches number 1, 2, 4, 8 and so on: at no other
        time can what PyTorch maps be told from what the kernel maps."""

        def launch(buffers: Buffers) -> None:
            self._launches += 1
            if self._launches & (self._launches - 1):
                run(buffers)
            else:
                with self.looking(f"at launch {self._launches}"):
                    run(buffers)

        return launch

    def within(self, make: MakeLoop) -> MakeLoop:
        """`make`, with a look at the address space before and after every stretch of a loop."""
        return lambda buffers, turns: _LookedAt(make(buffers, turns), self)

    @contextlib.contextmanager
    def looking(self, when: str) -> Iterator[None]:
        """Look at the address space before and after."""
        before = mappings()
        yield
        self._compare(before, when, own=_MORE_MAPPINGS)

    def _compare(self, before: Mappings, when: str, own: int) -> None:
        after = mappings()
        if after.code - before.code:
            self._found.append(f"executable memory mapped {when}")
        if after.count > before.count + own:
            self._found.append(f"{after.count - before.count} mappings more {when}")


class _LookedAt:
    """A loop with a look at the address space around its stretches."""

    def __init__(self, loop: Loop, watch: Watch) -> None:
        self._loop, self._watch = loop, watch

    def run(self, rounds: int) -> None:
        """The loop's."""
        with self._watch.looking("in a long loop of launches"):
            self._loop.run(rounds)

    def wrong(self) -> tuple[int, int]:
        """The loop's."""
        return self._loop.wrong()


class Watched:
    """An arm after whose samples the process must be as it was before; one that is not `judged` may change it."""

    def __init__(self, arm: Arm, watch: Watch, index: int, *, judged: bool) -> None:
        self._arm, self._watch, self._index, self._judged = arm, watch, index, judged

    def interval(self, batch: int) -> Interval:
        """The arm's, and then a look at the process."""
        found = self._arm.interval(batch)
        if not self._judged:
            self._watch.rebase()
        else:
            require(self._watch, self._index)
        return found


def require(watch: Watch, index: int) -> None:
    """Raise WrongOutput for arm `index` when the process is not as it was."""
    if not (check := watch.check()).ok:
        raise WrongOutput(index, check)


def _wake() -> None:
    """Let PyTorch start all the threads that it will ever use."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        some = torch.ones(512, 512, dtype=dtype)
        (some @ some).add_(1.0)
    torch.ones(1 << 20).add_(1.0).sum()


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
        with contextlib.suppress(OSError):  # the one that listed them is gone
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
