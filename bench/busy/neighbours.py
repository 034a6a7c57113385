"""Processes that only use a core or a GPU, as neighbours of the process that is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_SPIN = "print(flush=True)\nwhile True: pass"
_LAUNCH = """
import sys, time, torch
a, small = torch.randn(2048, 2048, device=sys.argv[1], dtype=torch.bfloat16), torch.randn(1 << 14, device=sys.argv[1])
a @ a
torch.cuda.synchronize(a.device)
print(flush=True)
for turn in range(1 << 60):
    for _ in range(1 + turn % 40):
        a @ a
        small.add_(1.0)
    torch.cuda.synchronize(a.device)
    time.sleep(turn % 7 * 1e-3)
"""
"""Bursts of matrix products and small kernels of varying length with pauses, like test processes that share a GPU."""


@contextmanager
def neighbours(count: int, device: str = "cpu") -> Iterator[tuple[int, ...]]:
    """Run `count` processes, not pinned to cores, while the block runs, and yield their process ids.

    Each spins on a core, or launches kernels on `device` if that names a GPU (``cuda:0``). All have begun when the
    block begins, and all are killed when it ends, however it ends.
    """
    command = [sys.executable, "-c", _SPIN] if device == "cpu" else [sys.executable, "-c", _LAUNCH, device]
    with ExitStack() as started:
        spinning = []
        for _ in range(count):
            one = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            started.callback(one.kill)  # runs before the wait of Popen's own exit
            spinning.append(one)
        for one in spinning:
            assert one.stdout is not None
            one.stdout.readline()
        yield tuple(one.pid for one in spinning)
