"""Processes that do nothing but use a core, as neighbours of what is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_SPIN = "print(flush=True)\nwhile True: pass"


@contextmanager
def neighbours(count: int) -> Iterator[tuple[int, ...]]:
    """Run `count` spinning processes, pinned nowhere, within the block; gives their process ids.

    All of them spin when the block begins, and none is left when it ends, however it ends.
    """
    with ExitStack() as started:
        spinning = []
        for _ in range(count):
            one = started.enter_context(subprocess.Popen([sys.executable, "-c", _SPIN], stdout=subprocess.PIPE))
            started.callback(one.kill)  # runs before the wait of Popen's own exit
            spinning.append(one)
        for one in spinning:
            assert one.stdout is not None
            one.stdout.readline()
        yield tuple(one.pid for one in spinning)
