"""The threads of a worker's process: PyTorch's own pool shrinks and grows, a kernel's threads are its fault."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time

import pytest

from agentcompile.worker import state

SCRIPT = """
import os, threading, time
import torch
from agentcompile.worker.state import ProcessWatch

class Probes:
    awake = frozenset()
    def state(self):
        return (), (), (0, 0, 0)

def threads():
    return set(os.listdir("/proc/self/task"))

def attend():
    some = torch.ones(1, 1, 1, 64, dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(some, some, some)

torch.set_num_threads(5)
watch = ProcessWatch(Probes())
before = threads()
attend()
time.sleep(0.05)
print("changed" if threads() != before else "same")
print(watch.check().ok)
attend()
torch.ones(1 << 22).add_(1.0)
print(watch.check().ok)
stop = threading.Event()
threading.Thread(target=stop.wait).start()
attend()
check = watch.check()
print(check.ok, check.detail)
stop.set()
"""


def test_only_more_threads_than_before_are_an_offence() -> None:
    command = [sys.executable, "-c", SCRIPT]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    # PyTorch's attention takes one thread here and ends the others: without that the test would show nothing.
    *pool, started = ran.stdout.splitlines()
    assert pool == ["changed", "True", "True"]
    assert started.startswith("False left changed: threads +1")


def test_threads_that_are_about_to_end_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [{1, 2, 3, 4}, {1, 2, 3, 4}, *[{1, 2, 4}] * 15]
    listed = itertools.chain(map(frozenset, shown), itertools.repeat(frozenset({1, 2})))
    monkeypatch.setattr(state, "thread_ids", lambda: next(listed))
    assert state.settled() == {1, 2}


def test_threads_that_come_and_go_are_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(state, "thread_ids", lambda: frozenset({next(numbers)}))
    begin = time.monotonic()
    assert state.settled()
    assert time.monotonic() - begin < 10
