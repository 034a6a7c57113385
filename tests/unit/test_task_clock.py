"""A kernel's clock is believed where the machine was busy, and not where it shows less time than passed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentcompile.ir.timing import Interval
from agentcompile.tasks import timing
from agentcompile.tasks.stirring import Stirred as Ports
from agentcompile.tasks.stirring import applied, fill, shuffled, steps_of, table_numbers, warm_up
from agentcompile.tasks.tally import TaskTally
from agentcompile.tasks.wire import Done, Examine, Examined, Renew, Stir

LATE_S = 0.25


class Kernel:
    """Says that it took a microsecond; `late` tells for each interval in turn whether a quarter of a second passed."""

    pid, stirred, changed = 0, Ports(), ""

    def __init__(self, late: Sequence[bool], took_ns: int | None) -> None:
        self._late, self.on_device, self.took_ns = list(late), took_ns is not None, took_ns or 0

    def interval(self, batch: int, *, stirred: bool = False, launched: bool = True, shown: bool = False) -> Interval:
        if self._late.pop(0):
            time.sleep(LATE_S)
        return Interval(ns=1000 * batch, waited_ns=0)


def evaluated(
    late: Sequence[bool], monkeypatch: pytest.MonkeyPatch, delayed_s: float = 0.0, took_ns: int | None = None
) -> bool:
    counts = iter(range(10_000))
    monkeypatch.setattr(timing, "core_ns", lambda pid=0: (0, next(counts) // 2 * int(delayed_s * 1e9 / 2)))
    monkeypatch.setattr(timing, "still", lambda kernel, tally: None)
    arm: Any = object.__new__(timing.KernelArm)
    arm._kernel, arm.tally = Kernel(late, took_ns), TaskTally()
    arm._timed(1)
    return bool(arm.tally.ok)


def test_a_clock_that_always_shows_too_little_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not evaluated([True] * 6, monkeypatch)


def test_one_interval_that_others_delayed_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluated([True, True, False], monkeypatch)


def test_what_the_system_counts_as_waiting_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluated([True], monkeypatch, delayed_s=LATE_S)


def test_on_a_device_its_process_says_what_passed_for_that_one_also_copies_and_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert evaluated([True], monkeypatch, took_ns=2000)
    assert not evaluated([False] * 6, monkeypatch, took_ns=int(LATE_S * 1e9))


SETS = 4


class Table:
    """The process of a task with one input in each of `SETS` arenas, and what it knows of the changes there."""

    limits = SimpleNamespace(check_s=1.0, measure_s=1.0)

    def __init__(self) -> None:
        self.sources = [torch.arange(64.0) + at for at in range(SETS)]
        self.inputs = [one.clone() for one in self.sources]
        self.tables = [torch.zeros(table_numbers(), dtype=torch.int64) for _ in range(SETS)]
        self.listed = [torch.zeros(0, 1, 2, dtype=torch.int64)] * SETS
        self.made = [0] * SETS
        self.examined = list[bool]()

    def ask(self, request: object, limit_s: float) -> object:
        """Do what the real process does: list changes, take them back or over, compare inputs with what they became."""
        match request:
            case Stir(arena=at, batch=batch, seed=seed):
                generator, steps = torch.Generator().manual_seed(seed), steps_of(batch, SETS, at)
                self.inputs[at].copy_(self.sources[at])
                self.listed[at] = fill(self.tables[at], [shuffled(self.sources[at])], steps, generator)
                self.made[at] = 0
            case Renew(arena=at, undo=True):
                self.inputs[at].copy_(self.sources[at])
            case Examine(arena=at):
                changed = applied(self.listed[at], 0, self.sources[at])
                self.examined.append(bool(torch.equal(self.inputs[at], changed)))
                return Examined(checks=(), error_ratio=0.0)
        return Done()

    def change(self, at: int) -> None:
        """Make the next listed change, as the kernel before each launch does."""
        made = self.made[at]
        assert made < len(self.listed[at]), "a change is made that was not listed"
        self.made[at] += 1
        self.inputs[at].copy_(applied(self.listed[at][made : made + 1], 0, self.inputs[at]))


class Stirred(Kernel):
    """A kernel whose inputs change before each launch."""

    stirred = Ports(elements=("x",))

    def __init__(self, table: Table, late: Sequence[bool]) -> None:
        super().__init__(late, None)
        self._table = table

    def interval(self, batch: int, *, stirred: bool = False, launched: bool = True, shown: bool = False) -> Interval:
        for count in (warm_up(batch), batch) if stirred else ():
            for launch in range(count):
                self._table.change(launch % SETS)
        return super().interval(batch, stirred=stirred, launched=launched, shown=shown)


def arm_of(table: Table, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What times `kernel`, where no core is counted and no process is."""
    monkeypatch.setattr(timing, "core_ns", lambda pid=0: (0, 0))
    monkeypatch.setattr(timing, "still", lambda kernel, tally: None)
    arm: Any = object.__new__(timing.KernelArm)
    arm._task, arm._kernel, arm.tally = table, kernel, TaskTally()
    arm._sets, arm._seed = SETS, 1
    return arm


@pytest.mark.parametrize("late", [[False] * 8, [False] * 3 + [True] + [False] * 4], ids=["quiet", "stalled"])
def test_changes_that_are_listed_once_are_made_once_though_the_machine_stood_still(
    late: Sequence[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table()
    arm = arm_of(table, Stirred(table, late), monkeypatch)
    arm._stirred(40)
    assert arm.tally.ok
    assert all(table.examined)
    assert len(table.examined) == late.count(True) + 1


class Looks(Stirred):
    """A kernel that does nothing where its results look right; every other look at the changes alone is delayed."""

    def __init__(self, table: Table, work_ns: int) -> None:
        super().__init__(table, [False] * 100)
        self._work_ns, self._alone = work_ns, 0

    def interval(self, batch: int, *, stirred: bool = False, launched: bool = True, shown: bool = False) -> Interval:
        super().interval(batch, stirred=stirred, launched=launched, shown=shown)
        if not stirred:
            return Interval(ns=50 * batch, waited_ns=0)
        if launched:
            return Interval(ns=(4_000 + self._work_ns) * batch, waited_ns=0)
        self._alone += 1
        return Interval(ns=(40_000 if self._alone % 2 else 4_000) * batch, waited_ns=0)


@pytest.mark.parametrize(("work_ns", "right"), [(100, True), (10_000, False)])
def test_a_busy_moment_in_the_changes_alone_allows_a_kernel_no_more(
    work_ns: int, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table()
    arm = arm_of(table, Looks(table, work_ns), monkeypatch)
    arm._stirred(40)
    assert arm.tally.ok == right


class Moved(Stirred):
    """A kernel of a microsecond whose first interval others delay, and whose clock shows a part of what passed."""

    def __init__(self, table: Table, part: float) -> None:
        super().__init__(table, [False] * 100)
        self._part, self._taken = part, 0
        self.batches = list[int]()

    def interval(self, batch: int, *, stirred: bool = False, launched: bool = True, shown: bool = False) -> Interval:
        super().interval(batch, stirred=stirred, launched=launched, shown=shown)
        self._taken += 1
        self.took_ns = 1000 * batch * (50 if self._taken == 1 else 1)
        if shown:
            self.batches.append(batch)
        return Interval(ns=round(self.took_ns * self._part), waited_ns=0)


@pytest.mark.parametrize(("part", "right"), [(1.0, True), (0.25, False)])
def test_a_clock_is_checked_by_what_passed_while_no_core_was_taken_on_long_intervals(
    part: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table()
    kernel = Moved(table, part)
    arm = arm_of(table, kernel, monkeypatch)
    arm.audit(400)
    assert arm.tally.ok == right
    assert kernel.batches[-1] * 1000 * part >= timing._CLOCK_NS / 2
