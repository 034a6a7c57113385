"""An arm's report on where its decode step spends its time: the parts of the step, and the time per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """The time of one region of a step, or of one section of a hand-written step, all its sites together."""

    kind: str
    ns: float
    """Time that it takes of one token."""
    sites: int
    covers: str = ""
    """The operators of the captured graph that it replaces, as `ranges` writes them; empty where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """An arm's report on its own decode step."""

    token_ns: float = 0.0
    """Time from one new token to the next in the generation that was looked at, or in one right before or after it."""
    parts: tuple[PartTime, ...] = ()
    """The parts of the step; time that none of them takes is loops, launches, waits and the end of the step."""
    how: str = ""
    """How the parts were timed, for people."""
    reason: str = ""
    """Why there are no parts; empty when there are."""


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as the text of their runs, like ``0-4,9``, which `numbers_in` reads."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def numbers_in(text: str) -> frozenset[int]:
    """Return the numbers in a text that `ranges` wrote.

    Raises:
        ValueError: the text is something else.
    """
    runs = (run.partition("-") for run in text.split(",") if text)
    return frozenset(number for first, _, last in runs for number in range(int(first), int(last or first) + 1))
