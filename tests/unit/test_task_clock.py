"""A kernel's clock is believed where the machine was busy, and not where it shows less time than passed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from agentcompile.ir.timing import Interval
from agentcompile.tasks import timing
from agentcompile.tasks.tally import Tally

LATE_S = 0.25


class Kernel:
    """Says that it took a microsecond; `late` tells for each interval in turn whether a quarter of a second passed."""

    pid, stirred, changed = 0, "", ""

    def __init__(self, late: Sequence[bool], took_ns: int | None) -> None:
        self._late, self.on_device, self.took_ns = list(late), took_ns is not None, took_ns or 0

    def interval(self, batch: int, *, stirred: bool = False, shown: bool = False) -> Interval:
        if self._late.pop(0):
            time.sleep(LATE_S)
        return Interval(ns=1000 * batch, waited_ns=0)


def judged(
    late: Sequence[bool], monkeypatch: pytest.MonkeyPatch, delayed_s: float = 0.0, took_ns: int | None = None
) -> bool:
    counts = iter(range(10_000))
    monkeypatch.setattr(timing, "core_ns", lambda pid=0: (0, next(counts) // 2 * int(delayed_s * 1e9 / 2)))
    monkeypatch.setattr(timing, "still", lambda kernel, tally: None)
    arm: Any = object.__new__(timing.KernelArm)
    arm._kernel, arm.tally = Kernel(late, took_ns), Tally()
    arm._timed(1)
    return bool(arm.tally.ok)


def test_a_clock_that_always_shows_too_little_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not judged([True] * 6, monkeypatch)


def test_one_interval_that_others_delayed_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged([True, True, False], monkeypatch)


def test_what_the_system_counts_as_waiting_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged([True], monkeypatch, delayed_s=LATE_S)


def test_on_a_device_its_process_says_what_passed_for_that_one_also_copies_and_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert judged([True], monkeypatch, took_ns=2000)
    assert not judged([False] * 6, monkeypatch, took_ns=int(LATE_S * 1e9))
