"""The times of a compiled model's generations on a quiet machine and beside spinning processes.

From a lock come quantiles in ms for both, and the ratio of the medians. Quiet and busy generations take turns in
blocks, so that slow changes of the machine's speed affect both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Protocol

from agentcompile.options import Options

from .neighbours import neighbours

_BLOCKS = 4
_WARM = 2
"""Generations at the start of a block that do not count: caches are cold and the scheduler still moves processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """The 5 % quantile, the median and the 95 % quantile of generations, in ms."""

    count: int
    low_ms: float
    median_ms: float
    high_ms: float

    @staticmethod
    def of(times_ms: Sequence[float]) -> Quantiles:
        """Return the quantiles of at least two times."""
        cuts = quantiles(times_ms, n=20, method="inclusive")
        return Quantiles(count=len(times_ms), low_ms=cuts[0], median_ms=median(times_ms), high_ms=cuts[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The times of one lock's generations of `tokens` tokens, quiet and beside `spinning` processes."""

    tokens: int
    spinning: int
    quiet: Quantiles
    busy: Quantiles
    quiet_decode: Quantiles
    """Times without the prompt and the first token, like `busy_decode`."""
    busy_decode: Quantiles

    @property
    def ratio(self) -> float:
        """The busy median over the quiet median."""
        return self.busy.median_ms / self.quiet.median_ms

    @property
    def decode_ratio(self) -> float:
        """The same without the prompt and the first token."""
        return self.busy_decode.median_ms / self.quiet_decode.median_ms


class Timed(Protocol):
    """The parts of a completion that are read here."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens made."""

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""


def measure_lock(
    lock: Path,
    *,
    spinning: int = 2,
    tokens: int = 64,
    runs: int = 200,
    device: str = "cpu",
    options: Options,
) -> Generation:
    """Load `lock` and measure its generations, quiet and beside neighbours on `device`.

    `options` name the model, and the home where it was compiled, so that kernels validated there are not validated
    again. What `agentcompile.load` raises passes through.
    """
    import agentcompile

    loaded = agentcompile.load(lock, options=options)

    def generate() -> Timed:
        made = loaded.generate(_PROMPT, max_new_tokens=tokens, ignore_eos=True)
        assert not isinstance(made, list)
        return made

    return measure(generate, spinning=spinning, runs=runs, device=device)


def measure(generate: Callable[[], Timed], *, spinning: int, runs: int, device: str = "cpu") -> Generation:
    """Generate at least `runs` times quiet and as often beside `spinning` processes on `device`.

    Raises:
        ValueError: `runs` gives fewer than two in a block.
        RuntimeError: a generation made other tokens than the first.
    """
    each = -(-runs // _BLOCKS)
    if each < 2:
        raise ValueError(f"runs = {runs} is less than {_BLOCKS + 1}")
    expected = generate().tokens

    def once() -> tuple[float, float]:
        begin = time.perf_counter()
        made = generate()
        spent = time.perf_counter() - begin
        if made.tokens != expected:
            raise RuntimeError(f"a generation beside {spinning} spinning processes made other tokens")
        return spent * 1e3, made.decode_s * 1e3

    quiet: list[tuple[float, float]] = []
    busy: list[tuple[float, float]] = []
    for _ in range(_BLOCKS):
        quiet += _block(once, each)
        with neighbours(spinning, device):
            busy += _block(once, each)
    return Generation(
        tokens=len(expected),
        spinning=spinning,
        quiet=Quantiles.of([whole for whole, _ in quiet]),
        busy=Quantiles.of([whole for whole, _ in busy]),
        quiet_decode=Quantiles.of([decode for _, decode in quiet]),
        busy_decode=Quantiles.of([decode for _, decode in busy]),
    )


def _block(once: Callable[[], tuple[float, float]], count: int) -> list[tuple[float, float]]:
    for _ in range(_WARM):
        once()
    return [once() for _ in range(count)]


_PROMPT = [1, 2, 3, 4, 5]
