"""The worker process's state before and after a candidate ran in it: what a kernel may not leave changed.

It covers rounding and flushing modes of every thread, the cores, priority and name of each, signals and their stacks,
threads, descriptors, environment, locale, directory, limits, rights and timers; and, around launches, memory that can
be executed, files that are mapped, and the size of the address space. A worker in which something differs is not used
again.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

import torch

from agentcompile.ir.timing import Interval
from agentcompile.ir.trial import Check
from agentcompile.measure.rounds import Arm
from agentcompile.validate.endurance import Loop, MakeLoop
from agentcompile.worker import memory_map
from agentcompile.worker.memory_map import Growth, mapped_bytes, mappings
from agentcompile.worker.probes import RANK_WORDS, Probes
from agentcompile.worker.protocol import WrongOutput
from agentcompile.worker.threads import listed, status, thread_ids, threads_now, timers_made

CHECK = "process-state"
_A_THREADS_SHARE = 1 << 15
"""Elements of an elementwise operator for which PyTorch uses another thread."""
_ENDING_S = 0.2
"""How long a thread that PyTorch no longer needs may take to end, in seconds."""
_SAME = 20
"""How often the threads are the same in a row, a millisecond apart, where none is about to end: on a busy machine one
that ends waits a time slice or two for a core."""
_LIMITS = tuple(sorted(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")))
_A_LIBRARYS_MAPPINGS = 64
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
Buffers = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """The parts of a process that a launch which only computes does not change; field names are shown to people."""

    floating_point: tuple[int, ...]
    blocked_signals: tuple[int, ...]
    signal_handlers: tuple[int, ...]
    environment: int
    locale: int
    attributes: int
    x87_registers: tuple[int, ...]
    timer_slack: Mapping[int, int]
    thread_attributes: Mapping[int, int]
    """By thread: a digest of its segment, locale, personality, privileges, and of what the system does at its end."""
    signal_stack: Mapping[int, int]
    thread_cores: Mapping[int, frozenset[int]]
    thread_priority: Mapping[int, tuple[int, int, int]]
    thread_name: Mapping[int, str]
    threads: frozenset[int]
    descriptors: frozenset[str]
    directory: str
    limits: tuple[tuple[int, int], ...]
    timers: tuple[bool, ...]
    timers_made: int
    umask: str
    rights: tuple[str, ...]


def take(probes: Probes) -> ProcessState:
    """Return the state now."""
    threads, handlers, facts = probes.state()
    rows = [threads[at : at + RANK_WORDS] for at in range(0, len(threads), RANK_WORDS)]
    each, (umask, rights) = threads_now(), status()
    return ProcessState(
        floating_point=tuple(number for row in rows for number in row[:2]),
        blocked_signals=tuple(row[2] for row in rows),
        signal_handlers=handlers,
        environment=facts[0],
        locale=facts[1],
        attributes=facts[2],
        x87_registers=tuple(row[3] for row in rows),
        timer_slack={row[6]: row[5] for row in rows},
        thread_attributes={row[6]: row[4] for row in rows},
        signal_stack={row[6]: row[7] for row in rows},
        thread_cores=each.cores,
        thread_priority=each.priority,
        thread_name=each.name,
        threads=thread_ids(),
        descriptors=frozenset(_descriptors()),
        directory=_directory(),
        limits=tuple(resource.getrlimit(which) for which in _LIMITS),
        timers=tuple(signal.getitimer(which)[0] > 0 for which in _TIMERS),
        timers_made=timers_made(),
        umask=umask,
        rights=rights,
    )


def differences(before: ProcessState, after: ProcessState) -> list[str]:
    """Return what differs, in words; of what is kept by thread, only for threads of both times."""
    found = []
    for field in fields(ProcessState):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changed = any(old[thread] != new[thread] for thread in old.keys() & new.keys())
        else:
            changed = old != new
        if changed:
            found.append(f"{field.name.replace('_', ' ')}{_told(old, new)}")
    return found


class ProcessWatch:
    """A watch over the process while candidates run, made before their libraries are loaded and run constructors."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        if probes.awake != (names := thread_ids()) or not names:
            _wake()
            probes.awake = settled()
        self._before = take(probes)
        self._mapped = mappings()
        self._launches, self._found, self._growth = 0, list[str](), Growth()

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
            self._before = replace(self._before, threads=thread_ids())
            now = replace(now, threads=self._before.threads)
        found = [*self._found, *self._growth.found(), *differences(self._before, now)]
        detail = f"left changed: {'; '.join(found)}" if found else ""
        return Check(name=CHECK, ok=not found, measured=float(len(found)), allowed=0.0, detail=detail)

    def _no_more_threads(self) -> bool:
        """Return whether there are no more threads than before, with all of PyTorch's; ending threads take a while."""
        _wake()
        end = time.monotonic() + _ENDING_S
        while more := len(thread_ids()) > len(self._before.threads):
            if time.monotonic() > end:
                break
            time.sleep(0.001)
        return not more

    def loaded(self) -> None:
        """Compare the address space right after a library was loaded."""
        self._found += memory_map.differences(self._mapped, mappings(), "by being loaded", more=_A_LIBRARYS_MAPPINGS)

    def around(self, run: Callable[[Buffers], None]) -> Callable[[Buffers], None]:
        """Return `run` with a look at the address space: at its size always, at all of it at launches 1, 2, 4, 8 …."""

        def launch(buffers: Buffers) -> None:
            self._launches += 1
            if self._launches & (self._launches - 1):
                before = mapped_bytes()
                run(buffers)
                self._growth.add(before)
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
        size = mapped_bytes()
        yield
        self._growth.add(size)
        self._found += memory_map.differences(before, mappings(), when)


class _LookedAt:
    """A loop that compares the address space around each `run`."""

    def __init__(self, loop: Loop, watch: ProcessWatch) -> None:
        self._loop, self._watch = loop, watch

    def run(self, rounds: int) -> None:
        with self._watch.looking("in a long loop of launches"):
            self._loop.run(rounds)

    def kept(self) -> str:
        with self._watch.looking("on stacks of their own"):
            return self._loop.kept()

    def wrong(self) -> tuple[int, int]:
        return self._loop.wrong()


class WatchedArm:
    """An arm whose samples must leave the process as it was; an arm that is not `checked` may change it."""

    def __init__(self, arm: Arm, watch: ProcessWatch, index: int, *, checked: bool) -> None:
        self._arm, self._watch, self._index, self._checked = arm, watch, index, checked

    def interval(self, batch: int) -> Interval:
        """Time the arm, then compare the process's state."""
        found = self._arm.interval(batch)
        if not self._checked:
            self._watch.rebase()
        else:
            require(self._watch, self._index)
        return found


def require(watch: ProcessWatch, index: int) -> None:
    """Check that arm `index` left the process as it was.

    Raises:
        WrongOutput: the process's state has changed.
    """
    if not (check := watch.check()).ok:
        raise WrongOutput(index, check)


def settled() -> frozenset[int]:
    """Return the ids of the threads once none is about to end: one that is counted would hide one that is started."""
    end, same, found = time.monotonic() + _ENDING_S, 0, thread_ids()
    while same < _SAME and time.monotonic() < end:
        time.sleep(0.001)
        same, found = (same + 1, found) if (now := thread_ids()) == found else (0, now)
    return found


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


def _descriptors() -> Iterator[str]:
    for name in listed("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that listed the directory is closed
            yield f"{name} {os.readlink(f'/proc/self/fd/{name}')}"  # noqa: PTH115


def _directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""
