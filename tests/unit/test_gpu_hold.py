"""The device is held until the host has queued what is timed: otherwise the host's delays are in the interval."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from agentcompile.worker import gpu_timing
from agentcompile.worker.gpu_timing import DeviceTimer


class _Device:
    """A clock in ns that a host and a device share: queueing takes the host time, a hold the device."""

    def __init__(self) -> None:
        self.now = 0
        self.free = 0  # when the device has done what was queued
        self.holds: list[int] = []
        self.warm = False  # whether the cache holds what is timed

    def sleep(self, cycles: int) -> None:
        self.holds.append(cycles)
        self.free = self.now + round(cycles / 1.98)

    def work(self, host_ns: int, device_ns: int) -> Callable[[], None]:
        def queued() -> None:
            self.now += host_ns
            self.free = max(self.free, self.now) + (device_ns // 3 if self.warm else device_ns)
            self.warm = True

        return queued

    def cool(self) -> None:
        self.warm = False


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> _Device:
    made = _Device()

    class Event:
        at = 0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = max(made.free, made.now)

        def synchronize(self) -> None:
            made.now = max(made.now, made.free)

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) / 1e6

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", made.sleep)
    monkeypatch.setattr(gpu_timing.time, "perf_counter_ns", lambda: made.now)
    return made


@pytest.mark.parametrize("host_ns", [5_000, 90_000, 400_000, 3_000_000])
def test_the_hosts_time_is_in_no_interval(device: _Device, host_ns: int) -> None:
    assert DeviceTimer().elapsed(device.work(host_ns, 250_000)).ns in (250_000, 250_000 // 3)
    assert DeviceTimer().elapsed(device.work(host_ns, 250_000), before=device.cool).ns == 250_000


def test_a_longer_hold_is_kept(device: _Device) -> None:
    watch = DeviceTimer()
    for _ in range(5):
        watch.elapsed(device.work(400_000, 1_000))
    assert device.holds[0] < device.holds[1] == device.holds[-1]
    assert len(device.holds) == 6


def test_a_host_that_is_slower_than_any_hold_does_not_loop(device: _Device) -> None:
    assert DeviceTimer().elapsed(device.work(50_000_000, 1_000), before=device.cool).ns >= 1_000
    assert len(device.holds) <= 3
