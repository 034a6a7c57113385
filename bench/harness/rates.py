"""Decode rates of all arms, interleaved: rounds of one random order of the arms and then its reverse, in which those
whose visit took long are left out.

A visit is one request to one arm, which generates until enough time has passed. A visit in which others took processor
time is made again; a round in which that does not help is dropped whole, so that dropping favours nobody.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from .means import mean_of
from .result import Interval
from .serving import Arm, ArmFailed
from .workload import Workload

WARM_TOKENS = 8
TRIES = 4
LIMIT_S = 300.0
CALM_SHARE = 0.05
"""Of all processors: the machine counts as calm, and a visit as undisturbed, when others use less."""
FED_SHARE = 0.5
"""The same where arms run on a GPU: the host only feeds it, from one core, and finds one while half of them idle."""
CALM_LIMIT_S = 15.0
LONG_S = 5.0
"""Seconds of generating from which on one visit of a round is enough: it is a mean over more time than two short ones
and what lies between them."""
VARIES = "its tokens differ from one generation to the next"
"""The note on a peer whose greedy tokens do: of ours it is a failure."""
_LOOK_S = 0.2

Tops = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
"""New tokens, and for each the likeliest few that it was chosen from, likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Medians over the generations of one visit."""

    first_s: float
    """Until the first new token."""
    token_s: float
    """From one new token to the next."""
    generations: int
    waited: float
    """Share of the visit's time that its threads were ready and had no core: its own doing where nobody else worked."""
    others: float
    """Share of all processors that everyone else took meanwhile, the host's other guests included."""
    tries: int
    firsts_s: tuple[float, ...] = ()
    """Until the first new token, of every generation."""
    rests_s: tuple[float, ...] = ()
    """From the first new token to the last."""
    peak_memory_bytes: int = 0
    joules: float | None = None
    """That the GPU drew from the request to the answer; None where nobody counts."""
    bearable: float = CALM_SHARE
    """What others may take of all processors without disturbing it."""
    same: bool = True
    """Whether every generation of the visit, those of disturbed tries too, gave the tokens of its process's first."""

    @property
    def contended(self) -> bool:
        """Whether other work on the machine disturbed the visit."""
        return self.others > self.bearable

    @property
    def long(self) -> bool:
        """Whether its generations took `LONG_S` together."""
        return sum(self.firsts_s) + sum(self.rests_s) >= LONG_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Two visits to every arm that was alive, or a long one, and the read bandwidth of the machine meanwhile."""

    process: int
    visits: dict[str, tuple[Visit, ...]]
    read_bytes_per_s: float
    """Mean of the ceilings measured right before each visit to the arm that is held against it."""
    machine: str = ""
    """Which one it was timed on."""

    @property
    def contended(self) -> bool:
        """Dropped whole when one of its visits was disturbed."""
        return any(visit.contended for both in self.visits.values() for visit in both)

    def token_s(self, arm: str) -> float:
        """The arm's time a token in this round."""
        return fmean(visit.token_s for visit in self.visits[arm])


def first_s(timed: Round, arm: str) -> float:
    """The arm's time to the first token in a round."""
    return fmean(visit.first_s for visit in timed.visits[arm])


def same_tokens(rounds: Sequence[Round], arm: str) -> bool:
    """Whether every generation of each of the arm's processes gave the same tokens, in dropped rounds too."""
    return all(visit.same for timed in rounds for visit in timed.visits.get(arm, ()))


def note_of(told: str, *, same: bool) -> str:
    """What is told of an arm's row; unless its tokens were the `same`, also that they vary."""
    return told if same else "; ".join(filter(None, (told, VARIES)))


def bearable_on(device: str) -> float:
    """What others may take of all processors without disturbing an arm on this device."""
    return CALM_SHARE if device == "cpu" else FED_SHARE


def wait_for_calm(share: float = CALM_SHARE, limit_s: float = CALM_LIMIT_S) -> None:
    """Return when others take at most `share` of all processors, as it should be between two visits, or after the
    limit; at once where the machine keeps no count. All arms are stopped meanwhile: whoever is busy is somebody else.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = _ticks()
        time.sleep(_LOOK_S)
        busy, total = (after - first for after, first in zip(_ticks(), before, strict=True))
        if busy <= share * total:
            return


def _ticks() -> tuple[int, int]:
    """Busy and all ticks of all processors together, since the machine started."""
    with suppress(OSError, ValueError):
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    return 0, 0


def run_round(
    process: int,
    arms: Sequence[Arm],
    workload: Workload,
    *,
    least_s: float,
    generator: random.Random,
    quiet: Callable[[], AbstractContextManager[object]],
    bandwidth: Callable[[], float],
    beside: str,
    steady: Callable[[str], bool],
    calm: Callable[[float], None] = wait_for_calm,
    joules: Callable[[], float | None] = lambda: None,
    limit_s: float = LIMIT_S,
    bearable: float = CALM_SHARE,
) -> tuple[Round, dict[str, str]]:
    """One round; also why arms failed in it, by name. An arm that failed is not in the round.

    The bandwidth of a shared host changes within minutes, so it is measured right before each visit to `beside`, or
    once when that arm is not there. `steady` says of an arm's name whether it fails when its tokens vary.
    """
    order = list(arms)
    generator.shuffle(order)
    seen: dict[str, list[Visit]] = {arm.name: [] for arm in arms}
    failed: dict[str, str] = {}
    with quiet():
        reads = [] if any(arm.name == beside for arm in arms) else [bandwidth()]
        for arm in [*order, *reversed(order)]:
            if arm.name in failed or any(visit.long for visit in seen[arm.name]):
                continue
            try:
                if arm.name == beside:
                    reads.append(bandwidth())
                promised = steady(arm.name)
                seen[arm.name].append(
                    visit(arm, workload, least_s, calm, joules, steady=promised, limit_s=limit_s, bearable=bearable)
                )
            except ArmFailed as failure:
                failed[arm.name] = str(failure)
                arm.close()  # one that hangs would disturb the others for the rest of the round
    visits = {name: tuple(done) for name, done in seen.items() if name not in failed}
    return Round(process=process, visits=visits, read_bytes_per_s=fmean(reads)), failed


def visit(
    arm: Arm,
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
    """Ask one arm to generate, again while others disturb it; the last try counts. Raises ArmFailed, for a `steady` one
    also when its tokens vary.

    With `whole` nothing looks at a clock within a generation, and `rests_s` are the times from its begin to its end.
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
    """Processor time of a process since it began, in the ticks of `_ticks`; 0 where nobody counts."""
    with suppress(OSError, ValueError, IndexError):
        # The name in parentheses may hold anything, spaces and parentheses included.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def waited_s(pid: int) -> float:
    """How long a process's live threads were ready and had no core, since each began; 0 where nobody counts."""
    total = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                total += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    return total / 1e9


def speedup(rounds: Sequence[Round], arm: str, baseline: str) -> Interval | None:
    """Time of the baseline over time of the arm, paired by round; None without both or with too few rounds."""
    return estimate([math.log(r.token_s(baseline) / r.token_s(arm)) for r in _kept(rounds, arm, baseline)])


def bandwidth_share(rounds: Sequence[Round], arm: str, token_bytes: int) -> Interval | None:
    """Bytes a second that the arm's rate means at least, over the read bandwidth measured in the same round."""
    return estimate([math.log(token_bytes / r.token_s(arm) / r.read_bytes_per_s) for r in _kept(rounds, arm)])


def _kept(rounds: Sequence[Round], *arms: str) -> Iterator[Round]:
    return (r for r in rounds if not r.contended and all(arm in r.visits for arm in arms))


def estimate(logs: Sequence[float]) -> Interval | None:
    """Mean and interval of logarithms, as ratios; None for fewer than three."""
    return None if len(logs) < 3 else mean_of(logs).ratio(len(logs))


def agrees(reference: Tops, other: Tops) -> str:
    """The mutual top-5 rule at the first token that differs; empty when it holds, else what is wrong.

    Each side's token must be among the five that the other found likeliest. What follows is another text: not compared.
    """
    for index, (ours, theirs) in enumerate(zip(reference[0], other[0], strict=True)):
        if ours != theirs:
            if theirs in reference[1][index] and ours in other[1][index]:
                return ""
            return f"token {index} is {theirs} where fp32 has {ours}, and they are not in each other's top 5"
    return ""
