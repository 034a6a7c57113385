"""The times of a compiled model's generations on a quiet machine and beside spinning processes.

From a lock come quantiles in ms for both, and the ratio of the medians. Quiet and busy generations take turns in
blocks, so that slow changes of the machine's speed affect both.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from agentcompile.options import Options

_BLOCKS = 4
_WARM = 2
"""Generations at the start of a block that do not count: caches are cold and the scheduler still moves processes."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """The 5 % quantile, the median and the 95 % quantile of at least two generations, in ms."""

    count: int
    low_ms: float
    median_ms: float
    high_ms: float

    @staticmethod
    def of(times_ms: Sequence[float]) -> Quantiles:
        """Return the quantiles of the times."""
        cuts = quantiles(times_ms, n=20, method="inclusive")
        return Quantiles(count=len(times_ms), low_ms=cuts[0], median_ms=median(times_ms), high_ms=cuts[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The times of one lock's generations of `tokens` tokens, quiet and beside `spinning` processes.

    Those of decoding are without the prompt and the first token.
    """

    tokens: int
    spinning: int
    quiet: Quantiles
    busy: Quantiles
    quiet_decode: Quantiles
    busy_decode: Quantiles

    @property
    def ratio(self) -> float:
        """The busy median over the quiet median."""
        return self.busy.median_ms / self.quiet.median_ms

    @property
    def decode_ratio(self) -> float:
        """The same without the prompt and the first token."""
        return self.busy_decode.median_ms / self.quiet_decode.median_ms


def measure_lock(
    lock: Path, *, spinning: int = 2, tokens: int = 64, runs: int = 200, device: str = "cpu", options: Options
) -> Generation:
    """Load `lock` and measure its generations, quiet and beside neighbours on `device`.

    `options` name the model, and the home where it was compiled, so that kernels validated there are not validated
    again. What `agentcompile.load` raises passes through.
    """
    import agentcompile

    loaded = agentcompile.load(lock, options=options)
    return measure(
        lambda: loaded.generate([1, 2, 3, 4, 5], max_new_tokens=tokens, ignore_eos=True),
        spinning=spinning,
        runs=runs,
        device=device,
    )


def measure(generate: Callable[[], Any], *, spinning: int, runs: int, device: str = "cpu") -> Generation:
    """Generate a completion at least `runs` times quiet and as often beside `spinning` processes on `device`.

    Raises:
        ValueError: `runs` gives fewer than two in a block.
        RuntimeError: a generation made other tokens than the first.
    """
    each = -(-runs // _BLOCKS)
    if each < 2:
        raise ValueError(f"runs = {runs} is less than {_BLOCKS + 1}")
    expected = generate().tokens

    def block() -> list[tuple[float, float]]:
        times = []
        for _ in range(_WARM + each):
            begin = time.perf_counter()
            made = generate()
            times.append(((time.perf_counter() - begin) * 1e3, made.decode_s * 1e3))
            if made.tokens != expected:
                raise RuntimeError(f"a generation beside {spinning} spinning processes made other tokens")
        return times[_WARM:]

    quiet, busy = list[tuple[float, float]](), list[tuple[float, float]]()
    for _ in range(_BLOCKS):
        quiet += block()
        with neighbours(spinning, device):
            busy += block()
    (quiet_ms, quiet_decode_ms), (busy_ms, busy_decode_ms) = zip(*quiet, strict=True), zip(*busy, strict=True)
    return Generation(
        tokens=len(expected),
        spinning=spinning,
        quiet=Quantiles.of(quiet_ms),
        busy=Quantiles.of(busy_ms),
        quiet_decode=Quantiles.of(quiet_decode_ms),
        busy_decode=Quantiles.of(busy_decode_ms),
    )
