"""A suite's result as tables, and these as Markdown; every number comes from the result.

The tables hold plain text, which each renderer escapes. Times are in milliseconds or seconds, as the heads say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from agentcompile.runs.tables import Table, amount

from ..harness.rates import note_of
from ..harness.result import ArmResult, Case, Compiled, Interval, Owner, RegionShare, Spread, SuiteResult
from ..harness.trial import OURS
from .cells import NOTHING, number, plain

Waits = tuple[tuple[float, ...], tuple[float, ...]]
_BASELINE = "baseline"
_BRIEF = (
    "workload",
    "arm",
    "tokens/s",
    "first token, median ms",
    "× roofline",
    "request's speed-up (95 %)",
    "token's speed-up (95 %)",
    "note",
)
_ARMS = (
    "Time per output token and time to the first token: over the single generations of all kept rounds. "
    "Speed-ups: of the time of a whole request, from its prompt to its last token, and of the time per output token, "
    "beside the case's baseline, paired by round, with a 95 % interval (widened "
    "by how much processes differ, where the run has enough of them to tell); above 1 is faster. Tokens/s, whole: all "
    "new tokens over the whole generation, its prompt included, as gpt-fast counts. × roofline: the median over what "
    "reading the weights, and the keys and values at the mean context of the generation, takes at the read rate of the "
    "same process. Load: the median of the processes that loaded alone."
)
_CASES = "Roofline: the weights and the cache's keys and values at the mean context, over the read rate of the process."
_REGIONS = "By each region's own trial; share: of the sum over all regions' occurrences; × roofline: over its own."
_RUNGS = (
    "Each rung is the one above it and one thing more; every rung runs in processes of its own, in rounds beside the "
    "others. Over the rung before: paired by round, with a 95 % interval. Compile: later locks take what earlier ones "
    "built and timed as it is."
)
_SHARES = (
    "Of the time from one token to the next, by kind of region, all its occurrences together; between the regions: "
    "loops, launches, waits, and what ends a step."
)
_GAINS = (
    "What a token takes less than on the rung before, by owner: the smallest sets of operators that are whole regions "
    "on both rungs, or the rung's change itself where one of the two cannot say where its time goes. The owners and "
    "what the step takes between the regions sum to the whole."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One table with its title and an explanation for the reader."""

    title: str
    about: str
    table: Table


def models(result: SuiteResult) -> tuple[str, ...]:
    """Return every model with a case or a lock, in the result's order."""
    return tuple(dict.fromkeys([*(case.model for case in result.cases), *result.compiled]))


def device(result: SuiteResult) -> str:
    """Return the machine in a few words."""
    machine = result.machine
    return f"{machine.device}, {machine.threads} {'threads' if machine.kind == 'cpu' else 'multiprocessors'}"


def revision(result: SuiteResult) -> str:
    """Return the revision that ran, and whether its sources were changed."""
    return result.sources(digits=12)


def rounds(cases: Iterable[Case]) -> tuple[int, int]:
    """Return how many rounds were kept and how many were dropped."""
    kept = [one.kept for case in cases for one in case.rounds]
    return sum(kept), len(kept) - sum(kept)


def arm_names(cases: Iterable[Case]) -> list[str]:
    """Return the names of all arms of the cases, in their order."""
    return list(dict.fromkeys(arm.name for case in cases for arm in case.arms))


def measured(case: Case) -> list[ArmResult]:
    """Return the arms whose state is ``measured``."""
    return [arm for arm in case.arms if arm.state == "measured"]


def token_times(case: Case) -> dict[str, list[float]]:
    """Return the ms per token of every measured arm in each kept round, in the order of timing."""
    kept = [one.token_s for one in case.rounds if one.kept]
    return {arm.name: [one[arm.name] * 1e3 for one in kept if one.get(arm.name, 0) > 0] for arm in measured(case)}


def waits_of(
    cases: Sequence[Case], name: str, compiled: Compiled | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of every load and every compile of an arm; our own compile's may come from `compiled`."""
    found = [arm for case in cases for arm in measured(case) if arm.name == name]
    loads = tuple(second for arm in found for second in arm.load_s)
    builds = tuple(arm.compile_s for arm in found if arm.compile_s is not None)
    if name == OURS and not builds and compiled is not None and compiled.compile_s is not None:
        builds = (compiled.compile_s,)
    return loads, builds


def shares(compiled: Compiled) -> list[tuple[RegionShare, float]]:
    """Return every region with its share of the step, largest first."""
    whole = sum(region.ns * region.sites for region in compiled.regions)
    found = [(region, region.ns * region.sites / whole if whole else 0.0) for region in compiled.regions]
    return sorted(found, key=lambda pair: (-pair[1], pair[0].name))


def head(result: SuiteResult) -> Table:
    """Return the table of what ran where, when and under which policy."""
    machine = result.machine
    kept, dropped = rounds(result.cases)
    facts = [
        ("machine", device(result)),
        ("architecture", " ".join([machine.arch, *machine.isa])),
        ("caches", ", ".join(amount(size) for size in machine.cache_bytes)),
        ("toolchain", machine.toolchain),
        ("libraries", " · ".join(f"{name} {version}" for name, version in machine.libraries)),
        *result.environment.items(),
        ("command", result.command),
        ("revision", revision(result)),
        ("date", result.made),
        ("suite", result.suite),
        ("timing policy", result.policy),
        ("seed", str(result.seed)),
        ("rounds", f"{kept} kept, {dropped} dropped as disturbed"),
        *([("resumed", f"{result.resumed} times")] if result.resumed else []),
    ]
    return Table(heads=("", ""), rows=[(name, value) for name, value in facts if value])


def parts(result: SuiteResult, model: str) -> Iterator[Part]:
    """Yield the tables on one model."""
    cases = [case for case in result.cases if case.model == model]
    if cases:
        yield Part(title="Arms by workload", about=_ARMS, table=arms_table(cases))
        yield Part(title="Cases", about=_CASES, table=cases_table(cases))
    for case in (case for case in cases if case.rungs):
        yield Part(title=f"Rungs, {case.workload}", about=_RUNGS, table=rungs_table(case))
        yield Part(title=f"Gain by owner, {case.workload}", about=_GAINS, table=gains_table(case))
        yield Part(title=f"Shares of a token's time, {case.workload}", about=_SHARES, table=shares_table(case))
    if (compiled := result.compiled.get(model)) is not None:
        took = "was given" if compiled.compile_s is None else f"compiled in {number(compiled.compile_s)} s"
        about = f"Lock {compiled.lock[:16]}, {took}. {_REGIONS}"
        yield Part(title="Regions of the decode step", about=about, table=regions_table(compiled))
    if (facts := facts_table(cases)).rows:
        yield Part(title="Versions and settings of the arms", about="", table=facts)


def arms_table(cases: Sequence[Case], columns: Sequence[str] = ()) -> Table:
    """Return the table of arms by workload, with the columns whose heads are in `columns` (none: all).

    Empty columns are left out. Every arm is listed; one that is absent from all of several cases for one reason has a
    single row.
    """
    away = _away(cases)
    rows = [
        (f"{case.workload}, {case.mode}", arm.name, *_cells(case, arm), _note(arm))
        for case in cases
        for arm in case.arms
        if arm.name not in away
    ]
    rows += [("all", arm.name, *_cells(cases[0], arm), _note(arm)) for arm in away.values()]
    heads = ("workload", "arm", *_COLUMNS, "note")
    told = [
        at
        for at, head in enumerate(heads)
        if (not columns or head in columns) and (at < 2 or any(row[at] not in ("", NOTHING, _BASELINE) for row in rows))
    ]
    kept = [tuple(row[at] for at in told) for row in rows]
    right = tuple(new for new, at in enumerate(told) if 2 <= at < len(heads) - 1)
    return Table(heads=tuple(heads[at] for at in told), rows=kept, right=right)


def cases_table(cases: Sequence[Case]) -> Table:
    """Return the table of cases: the request, the bytes that a token must read at least, and the kept rounds."""
    heads = (
        "workload", "prompt", "new tokens", "baseline", "weights", "KV at the mean context", "read GB/s",
        "roofline, ms", "rounds kept", "dropped", "samples",
    )  # fmt: skip
    rows = []
    for case in cases:
        kept, dropped = rounds([case])
        sizes = (str(case.prompt_tokens), str(case.new_tokens), case.baseline)
        counts = (str(kept), str(dropped), case.samples[:16] or NOTHING)
        rows.append((f"{case.workload}, {case.mode}", *sizes, *_floor(case), *counts))
    return Table(heads=heads, rows=rows, right=(1, 2, 4, 5, 6, 7, 8, 9))


def regions_table(compiled: Compiled) -> Table:
    """Return the table of regions with their share of the decode step, largest first."""
    heads = ("region", "kind", "occurrences", "share of the step", "µs each", "× roofline", "choice")
    rows = []
    for region, share in shares(compiled):
        times = number(region.ns / region.floor_ns, 3) if region.floor_ns else NOTHING
        found = (str(region.sites), f"{share:.1%}", number(region.ns / 1e3), times, region.choice)
        rows.append((region.name, region.kind, *found))
    return Table(heads=heads, rows=rows, right=(2, 3, 4, 5))


def rungs_table(case: Case) -> Table:
    """Return the table of rungs with their times and speedups."""
    rows = []
    for rung in case.rungs:
        arm = case.arm(rung.name)
        if arm is None or arm.state != "measured" or arm.token_s is None:
            why = note_of(arm.away, same=arm.same) if arm else "absent"
            rows.append((rung.name, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, why))
            continue
        over = _interval(rung.gain.speedup) if rung.gain else NOTHING
        token = number(arm.token_s.median * 1e3)
        lock = rung.lock.removeprefix("sha256:")[:12] or NOTHING
        about = note_of(rung.about, same=arm.same)
        rows.append(
            (
                rung.name,
                token,
                number(arm.tokens_per_s),
                over,
                _interval(arm.speedup),
                number(arm.compile_s, 3),
                lock,
                about,
            )
        )
    heads = (
        "rung", "ms a token", "tokens/s", "over the rung before", "over the first", "compile, s", "lock", "what runs",
    )  # fmt: skip
    return Table(heads=heads, rows=rows, right=(1, 2, 3, 4, 5))


def shares_table(case: Case) -> Table:
    """Return the table of each kind of region's share of the time per token, by rung."""
    looked = [rung for rung in case.rungs if rung.rest is not None]
    kinds = list(dict.fromkeys(one.kind for rung in reversed(looked) for one in rung.shares))
    by_rung = [{one.kind: one for one in rung.shares} for rung in looked]
    rows = [
        (kind, *(f"{found[kind].share:.1%} ({found[kind].sites})" if kind in found else NOTHING for found in by_rung))
        for kind in kinds
    ]
    rows.append(("between the regions", *(f"{rung.rest:.1%}" for rung in looked)))
    rows.append(("how", *(rung.looked for rung in looked)))
    heads = ("kind (occurrences)", *(rung.name for rung in looked))
    return Table(heads=heads, rows=rows if looked else [], right=tuple(range(1, len(heads))))


def gains_table(case: Case) -> Table:
    """Return the table of every rung's gain, by owner and as a whole."""
    rows: list[tuple[str, ...]] = []
    for rung in case.rungs:
        if rung.gain is None:
            continue
        gain = rung.gain
        whole = Owner(name="the whole", before_s=gain.before_s, after_s=gain.after_s)
        shown = [*gain.owners, gain.rest] if gain.rest.before_s or gain.rest.after_s else list(gain.owners)
        rows += [_owner(f"{rung.name} over {gain.over}", one, whole) for one in [*shown, whole]]
    heads = ("rung", "owner", "before, µs", "after, µs", "gained, µs", "of the gain")
    return Table(heads=heads, rows=rows, right=(2, 3, 4, 5))


def _owner(rung: str, one: Owner, whole: Owner) -> tuple[str, ...]:
    share = f"{one.gain_s / whole.gain_s:.1%}" if abs(whole.gain_s) > 1e-12 else NOTHING
    times = (f"{seconds * 1e6:.1f}" for seconds in (one.before_s, one.after_s, one.gain_s))
    return (rung, one.name, *times, share)


def facts_table(cases: Sequence[Case]) -> Table:
    """Return the table of versions and settings by arm, with every value where cases differ."""
    found: dict[str, dict[str, list[str]]] = {}
    for arm in (arm for case in cases for arm in case.arms):
        for name, value in arm.facts.items():
            seen = found.setdefault(arm.name, {}).setdefault(name, [])
            if value not in seen:
                seen.append(value)
    rows = [
        (arm, " · ".join(f"{name} {' / '.join(seen)}" for name, seen in facts.items())) for arm, facts in found.items()
    ]
    return Table(heads=("arm", "facts"), rows=rows)


def markdown(result: SuiteResult, plots: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Return the report; `plots` has, by model, titles and file names of the figures in the report's folder."""
    lines = [f"# {escaped(f'Suite {result.suite} on {device(result)}')}", "", *_rendered(head(result)), ""]
    for model in models(result):
        lines += [f"## {escaped(model)}", ""]
        for part in parts(result, model):
            lines += [f"### {escaped(part.title)}", "", *_rendered(part.table), ""]
            lines += [escaped(part.about), ""] if part.about else []
        for title, name in plots.get(model, ()):
            lines += [f"![{escaped(title)}]({name})", ""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Return `text` escaped so that Markdown shows it as it is, also within a table."""
    shown = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(r"([\\`*\[\]|~])", r"\\\1", shown)
    # An underscore within a word is not Markdown, and most names have one.
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", shown)


def brief(result: SuiteResult) -> Iterator[str]:
    """Yield, for every model, a table of the few columns that a reader looks for first."""
    for model in models(result):
        cases = [case for case in result.cases if case.model == model]
        yield from _rendered(arms_table(cases, _BRIEF))
        yield ""


def _rendered(table: Table) -> list[str]:
    marks = ["--:" if at in table.right else "---" for at in range(len(table.heads))]
    rows = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in (table.heads, *table.rows)]
    return [rows[0], f"|{'|'.join(marks)}|", *rows[1:]]


def _away(cases: Sequence[Case]) -> dict[str, ArmResult]:
    found = {name: [arm for case in cases if (arm := case.arm(name))] for name in arm_names(cases)}
    return {
        name: arms[0]
        for name, arms in found.items()
        if len(arms) == len(cases) > 1 and {(arm.state, arm.reason) for arm in arms} == {("absent", arms[0].reason)}
    }


def _note(arm: ArmResult) -> str:
    return note_of(arm.away or ("output not compared" if arm.agrees is None else arm.agrees), same=arm.same)


def _floor(case: Case) -> tuple[str, ...]:
    if (floor := case.floor) is None:
        return (NOTHING,) * 4
    rate = number(floor.read_bytes_per_s / 1e9)
    return (
        amount(floor.weight_bytes),
        amount(floor.cache_bytes),
        rate,
        _ms(floor.token_s if floor.read_bytes_per_s else None),
    )


def _cells(case: Case, arm: ArmResult) -> Iterator[str]:
    # The times of an arm whose output is wrong are not shown.
    for cell in _COLUMNS.values():
        yield cell(case, arm) if arm.state == "measured" else NOTHING


def _ms(seconds: float | None) -> str:
    return number(None if seconds is None else seconds * 1e3)


def _median(spread: Spread | None) -> str:
    return _ms(spread.median if spread else None)


def _p95(spread: Spread | None) -> str:
    return _ms(spread.p95 if spread else None)


def _beside(case: Case, arm: ArmResult, found: Interval | None) -> str:
    return _BASELINE if found is None and arm.name == case.baseline else _interval(found)


def _interval(found: Interval | None) -> str:
    told = ", inconclusive" if found and found.wide else ""
    return f"{number(found.value, 3)}× ({number(found.low, 3)}–{number(found.high, 3)}){told}" if found else NOTHING


_COLUMNS: Mapping[str, Callable[[Case, ArmResult], str]] = {
    "tokens/s": lambda _, arm: number(arm.tokens_per_s),
    "tokens/s, whole": lambda case, arm: number(case.new_tokens / arm.total_s.median if arm.total_s else None),
    "token, median ms": lambda _, arm: _median(arm.token_s),
    "token, p95 ms": lambda _, arm: _p95(arm.token_s),
    "first token, median ms": lambda _, arm: _median(arm.first_s),
    "first token, p95 ms": lambda _, arm: _p95(arm.first_s),
    "× roofline": lambda _, arm: number(arm.times_floor, 3),
    "request's speed-up (95 %)": lambda case, arm: _beside(case, arm, arm.total_speedup),
    "token's speed-up (95 %)": lambda case, arm: _beside(case, arm, arm.speedup),
    "first token's speed-up": lambda case, arm: _beside(case, arm, arm.first_speedup),
    "peak memory": lambda _, arm: NOTHING if arm.peak_memory_bytes is None else amount(arm.peak_memory_bytes),
    "load, s": lambda _, arm: number(median(arm.load_s), 3) if arm.load_s else NOTHING,
    "compile, s": lambda _, arm: number(arm.compile_s, 3),
    "J/token": lambda _, arm: number(arm.joules_per_token, 3),
}
