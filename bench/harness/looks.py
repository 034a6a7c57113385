"""Where a decode step spends its time, as an arm says it: parts of the step, and what a token takes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """One region of a step, or one section of a step that was written by hand; all its sites together."""

    kind: str
    ns: float
    """That it takes of one token."""
    sites: int
    covers: str = ""
    """Which operators of the captured graph it stands for, as `ranges` writes them; empty where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What an arm found in its own step."""

    token_ns: float = 0.0
    """From one new token to the next in the same generation, or right beside it."""
    parts: tuple[PartTime, ...] = ()
    """What none of them takes is between them: loops, launches, waits, and what ends a step."""
    how: str = ""
    """How the parts were timed, for people."""
    reason: str = ""
    """Why there are none."""


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as runs: ``0-4,9``; `numbers_in` reads them."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def numbers_in(text: str) -> frozenset[int]:
    """What `ranges` wrote; ValueError for anything else."""
    return frozenset(_numbers(text))


def _numbers(text: str) -> Iterator[int]:
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)
