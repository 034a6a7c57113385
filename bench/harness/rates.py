"""Decode rates of all arms, interleaved: each round visits them in a random order and then in the reverse order.

A visit is one request to one arm, which generates until enough time has passed; after a long visit, the arm's second
one in the round is left out. A visit in which other processes took processor time is repeated; a round in which that
does not help is dropped whole, so that dropping favours no arm.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from .means import LEAST_ROUNDS, mean_of
from .result import Interval
from .serving import ArmFailed, LiveArm
from .workload import Workload

WARM_TOKENS = 8
TRIES = 4
LIMIT_S = 300.0
CALM_SHARE = 0.05
"""The share of all processors that other processes may use in an undisturbed visit, or on a calm machine."""
FED_SHARE = 0.5
"""The same share where arms run on a GPU: the host needs one core to feed it, which it finds while half are idle."""
CALM_LIMIT_S = 15.0
LONG_S = 5.0
"""Seconds of generating from which one visit in a round is enough.

It is then a mean over more time than two short visits and the time between them.
"""
VARIES = "its tokens differ from one generation to the next"
"""The note on a peer whose greedy tokens vary between generations; our own arm fails instead."""
_LOOK_S = 0.2

Tops = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
"""The new tokens, and for each of them the likeliest few tokens at its step, likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The result of one visit; times are medians over its generations."""

    first_s: float
    """Time to the first new token."""
    token_s: float
    """Time from one new token to the next."""
    generations: int
    waited: float
    """Time that its threads were ready and had no core, over the visit's time; its own doing if no others ran."""
    others: float
    """Share of all processors that other processes took meanwhile, the host's other guests included."""
    tries: int
    firsts_s: tuple[float, ...] = ()
    """Time to the first new token of every generation."""
    rests_s: tuple[float, ...] = ()
    """Time from the first new token to the last of every generation."""
    peak_memory_bytes: int = 0
    joules: float | None = None
    """Energy that the GPU drew from the request to the answer; None where it is not measured."""
    bearable: float = CALM_SHARE
    """The share of all processors that other processes may take without disturbing the visit."""
    same: bool = True
    """Whether every generation, those of disturbed tries too, gave the tokens of the first one of its process."""

    @property
    def contended(self) -> bool:
        """Whether other processes on the machine disturbed the visit."""
        return self.others > self.bearable

    @property
    def long(self) -> bool:
        """Whether its generations took at least `LONG_S` together."""
        return sum(self.firsts_s) + sum(self.rests_s) >= LONG_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Two visits to every live arm, or one long visit, and the machine's read bandwidth meanwhile."""

    process: int
    visits: dict[str, tuple[Visit, ...]]
    read_bytes_per_s: float
    """Mean of the read bandwidths measured right before each visit to our own arm, or the only one without it."""
    machine: str = ""
    """A short digest of the machine that timed the round."""

    @property
    def contended(self) -> bool:
        """Whether one of its visits was disturbed, so that the whole round is dropped."""
        return any(visit.contended for both in self.visits.values() for visit in both)

    def token_s(self, arm: str) -> float:
        """Return the arm's mean time per token in this round."""
        return fmean(visit.token_s for visit in self.visits[arm])

    def first_s(self, arm: str) -> float:
        """Return the arm's mean time to the first token in this round."""
        return fmean(visit.first_s for visit in self.visits[arm])


def same_tokens(rounds: Sequence[Round], arm: str) -> bool:
    """Return whether all generations of each of the arm's processes gave the same tokens, in dropped rounds too."""
    return all(visit.same for timed in rounds for visit in timed.visits.get(arm, ()))


def note_of(told: str, *, same: bool) -> str:
    """Return the note on an arm's row: `told` and, unless its tokens were the `same`, that they vary."""
    return told if same else "; ".join(filter(None, (told, VARIES)))


def bearable_on(device: str) -> float:
    """Return the share of all processors that other processes may take without disturbing an arm on this device."""
    return CALM_SHARE if device == "cpu" else FED_SHARE


def wait_for_calm(share: float = CALM_SHARE, limit_s: float = CALM_LIMIT_S) -> None:
    """Wait until other processes take at most `share` of all processors, or for `limit_s`.

    All arms are stopped between visits, so that whatever is busy is not an arm. It returns at once where the machine
    does not count processor time.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = _ticks()
        time.sleep(_LOOK_S)
        busy, total = (after - first for after, first in zip(_ticks(), before, strict=True))
        if busy <= share * total:
            return


def _ticks() -> tuple[int, int]:
    """Return the busy ticks and all ticks of all processors since the machine started; 0 where they are not counted."""
    with suppress(OSError, ValueError):
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    return 0, 0


def visit(
    arm: LiveArm,
    workload: Workload,
    least_s: float,
    calm: Callable[[float], None],
    joules: Callable[[], float | None] = lambda: None,
    *,
    steady: bool,
    whole: bool = False,
    limit_s: float = LIMIT_S,
    bearable: float = CALM_SHARE,
) -> Visit:
    """Ask one arm to generate, up to `TRIES` times while other processes disturb it; the last try counts.

    With `whole` no clock is read within a generation, and `rests_s` are the times of whole generations.

    Raises:
        ArmFailed: the arm failed, or it is `steady` and its tokens vary.
    """
    request = {
        "do": "generate",
        "ids": workload.ids,
        "new": workload.new,
        "warm": WARM_TOKENS,
        "least_s": least_s,
        "sampling": workload.sampling,
        "whole": whole,
    }
    same = True
    for tried in range(1, TRIES + 1):
        calm(bearable)
        waited, begin = waited_s(arm.pid), time.monotonic()
        (busy, total), own, drawn = _ticks(), own_ticks(arm.pid), joules()
        reply = arm.ask(request, limit_s)
        drawn_now = joules()
        share = max(0.0, waited_s(arm.pid) - waited) / max(time.monotonic() - begin, 1e-9)
        (busy_now, total_now), own_now = _ticks(), own_ticks(arm.pid)
        others = max(0, (busy_now - busy) - (own_now - own)) / max(total_now - total, 1)
        same = same and reply["same"]
        if steady and not same:
            raise ArmFailed("one prompt gave different tokens from one generation to the next")
        done = Visit(
            first_s=median(reply["first_s"]),
            token_s=median(reply["rest_s"]) / (workload.new - 1),
            generations=len(reply["rest_s"]),
            waited=share,
            others=others,
            tries=tried,
            firsts_s=tuple(reply["first_s"]),
            rests_s=tuple(reply["rest_s"]),
            peak_memory_bytes=reply["peak_memory_bytes"],
            joules=None if drawn is None or drawn_now is None else drawn_now - drawn,
            bearable=bearable,
            same=same,
        )
        if not done.contended:
            break
    return done


def own_ticks(pid: int) -> int:
    """Return the processor time of a process since it began, in kernel clock ticks; 0 where it is not counted."""
    with suppress(OSError, ValueError, IndexError):
        # The name in parentheses may hold anything, spaces and parentheses included.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def waited_s(pid: int) -> float:
    """Return the total time that a process's live threads were ready and had no core; 0 where it is not counted."""
    total = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                total += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    return total / 1e9


def speedup(rounds: Sequence[Round], arm: str, baseline: str) -> Interval | None:
    """Estimate the baseline's time per token over the arm's, paired by round; None when fewer than 3 have both."""
    return estimate([math.log(r.token_s(baseline) / r.token_s(arm)) for r in _kept(rounds, arm, baseline)])


def bandwidth_share(rounds: Sequence[Round], arm: str, token_bytes: int) -> Interval | None:
    """Estimate the bytes per second that the arm must read over the read bandwidth of the same round; None below 3."""
    return estimate([math.log(token_bytes / r.token_s(arm) / r.read_bytes_per_s) for r in _kept(rounds, arm)])


def _kept(rounds: Sequence[Round], *arms: str) -> Iterator[Round]:
    return (r for r in rounds if not r.contended and all(arm in r.visits for arm in arms))


def estimate(logs: Sequence[float]) -> Interval | None:
    """Return the mean of `logs` and its interval, as ratios; None for fewer than three."""
    return None if len(logs) < LEAST_ROUNDS else mean_of(logs).ratio(len(logs))


def agrees(reference: Tops, other: Tops) -> str:
    """Return what breaks the mutual top-5 rule at the first token that differs; empty when the rule holds.

    Each side's token must be among the other side's five likeliest. Later tokens continue different texts, so they are
    not compared.
    """
    for index, (ours, theirs) in enumerate(zip(reference[0], other[0], strict=True)):
        if ours != theirs:
            if theirs in reference[1][index] and ours in other[1][index]:
                return ""
            return f"token {index} is {theirs} where fp32 has {ours}, and they are not in each other's top 5"
    return ""
