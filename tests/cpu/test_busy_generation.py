"""What `bench busy` measures of generation: quantiles of both sides, and that the tokens are the same."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from agentcompile.bench.busy.recipe import Quantiles, measure, neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class _Completion:
    tokens: tuple[int, ...]
    decode_s: float


class _Model:
    """Takes a millisecond for three tokens; from generation `odd` on they are others."""

    def __init__(self, odd: int) -> None:
        self.made, self._odd = 0, odd

    def generate(self) -> _Completion:
        time.sleep(0.001)
        self.made += 1
        return _Completion(tokens=(1 if self.made < self._odd else 2,) * 3, decode_s=0.0005)


def test_both_sides_have_as_many_generations_as_were_asked_for() -> None:
    found = measure(_Model(10**9).generate, spinning=1, runs=8)
    assert (found.quiet.count, found.busy.count, found.tokens, found.spinning) == (8, 8, 3, 1)
    assert 1 <= found.quiet.low_ms <= found.quiet.median_ms <= found.quiet.high_ms
    assert found.ratio == found.busy.median_ms / found.quiet.median_ms
    assert found.decode_ratio == 1.0


def test_other_tokens_beside_neighbours_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="made other tokens"):
        measure(_Model(8).generate, spinning=1, runs=8)


def test_quantiles_are_those_of_the_times() -> None:
    found = Quantiles.of([float(ms) for ms in range(101)])
    assert (found.low_ms, found.median_ms, found.high_ms) == (5.0, 50.0, 95.0)


def test_neighbours_spin_within_the_block_and_are_gone_after_it() -> None:
    with neighbours(2) as ids:
        begin = [_spent(one) for one in ids]
        time.sleep(0.3)
        assert all(_spent(one) > before for one, before in zip(ids, begin, strict=True))
    for one in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(one, 0)


def _spent(process: int) -> int:
    """User time in clock ticks."""
    return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[11])
