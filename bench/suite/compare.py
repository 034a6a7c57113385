"""`agentcompile bench compare`: what is faster, slower or the same between two result files, or two arms of one.

In: result files of the suite. Out: for every arm's time per output token and time to the first token a verdict on B
against A, as a table, as Markdown or as JSON. A ratio above 1 says that B is faster.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcompile.catalog.decode import nearest
from agentcompile.cli.paragraphs import Paragraphs
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import clean
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import Json
from agentcompile.measure.policy import POLICY
from agentcompile.runs.tables import Table, duration

from ..harness.rates import VARIES
from ..harness.result import Case, SuiteResult, read_result
from .verdicts import Change, Compared, Report, Row, Unmeasured, common_cases, compare_arms, compare_runs

_EPILOG = """\
Two files: what decides is the arm's speed-up over the case's baseline, paired by round in its own run; the two runs'
speed-ups are compared as independent means (Welch 1947). The times themselves are shown beside: they hold only as far
as the machine did not change between the runs. One file with --arms X,Y: Y against X, paired by round.

Many comparisons: each interval misses with chance 0.05 / (cases × arms × 2 times), so that all of a table hold together
with 95 %. Nothing is claimed from fewer than 3 kept rounds, with more than 20 % of rounds dropped, or when processes
disagree in sign.

Exit codes: 0 compared; 2 wrong usage or a file that cannot be read; 3 the files are not comparable; with
--fail-on-slower 4 when an arm's output is wrong in B, else 5 when something that decides is SLOWER; an arm that failed
or is absent in B is shown and fails nothing. With --fail-on-difference 5 when something that decides does not agree
(its interval leaves 1 out, and all processes say so), else 7 when of something it is not known."""
_QUANTITIES: Mapping[str, str] = {"total": "whole request", "token": "per token", "first": "first token"}
_AGREE: Mapping[bool | None, str] = {True: "yes", False: "no", None: "-"}
_VIEWS: Mapping[str, str] = {"ratio": "B/A over baseline", "absolute": "B/A of times", "paired": "paired"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between two runs in something other than their measurements."""

    what: str
    a: str
    b: str
    refuses: bool
    """Whether it makes their numbers incomparable; otherwise it may be what the comparison is about."""

    @property
    def text(self) -> str:
        """The difference in words, for people."""
        return f"{self.what}: {self.a or 'none'} in A, {self.b or 'none'} in B"


def run(arguments: Sequence[str]) -> int:
    """Compare, print the result, and return an exit code.

    Raises:
        AgentCompileError: a file cannot be read (usage), or the files cannot be compared (drift).
    """
    asked = _parse(arguments)
    screen = Screen.standard("json" if asked.json else "text", redraws=False, colour=False)
    runs = [read_result(path) for path in asked.files]
    found: list[Difference] = []
    if asked.arms:
        x, y = (_arm(asked.files[0], runs[0], name) for name in asked.arms)
        report = compare_arms(runs[0], x, y, claim=asked.claim)
    else:
        found = differences(*runs)
        _comparable(asked.files, runs, found, asked.anyway)
        report = compare_runs(*runs, claim=asked.claim, absolute=asked.absolute)
    for one in found:
        if one.refuses:
            screen.say(f"warning: {clean(one.text)}")
    for wrong in report.wrong:
        screen.say(f"warning: {clean(f'{wrong.case}: {wrong.arm}: {wrong.reason}')}")
    sides = [_side(path, result) for path, result in zip(asked.files, runs, strict=True)]
    screen.json(_json(sides, found, report))
    shown = _table(report)
    if asked.markdown:
        screen.text("\n".join(_markdown(shown)) + "\n")
    else:
        for name, side in zip("AB", sides, strict=False):
            screen.text(f"{name}  {'  '.join(side.values())}")
        for one in found:
            screen.text(f"   {clean(one.text)}")
        screen.text("")
        screen.table(shown)
        screen.text("")
    screen.text(_summary(report))
    return _exit_code(report, slower=asked.fail_on_slower, difference=asked.fail_on_difference)


def _exit_code(report: Report, *, slower: bool, difference: bool) -> ExitCode:
    if slower and report.wrong:
        return ExitCode.CORRECTNESS
    if (slower and report.slower) or (difference and report.apart):
        return ExitCode.PERFORMANCE
    return ExitCode.UNDECIDED if difference and report.untold else ExitCode.OK


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="agentcompile bench compare",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=Paragraphs,
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="A and B, or one file with --arms")
    parser.add_argument("--arms", type=_two, metavar="X,Y", help="within one file: arm Y (as B) against arm X (as A)")
    parser.add_argument(
        "--claim",
        type=_share,
        default=POLICY.claim,
        metavar="SHARE",
        help="the smallest difference that is claimed, as a share (default %(default)s): FASTER and SLOWER when the "
        "whole interval is beyond it, SAME when inside; intervals are corrected for how many there are, see below",
    )
    parser.add_argument("--absolute", action="store_true", help="decide by the times, not by the speed-ups")
    parser.add_argument("--anyway", action="store_true", help="compare what is not comparable, with warnings")
    parser.add_argument("--fail-on-slower", action="store_true", help="exit with 4 or 5, see below")
    parser.add_argument("--fail-on-difference", action="store_true", help="exit with 5 or 7, see below")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON value on stdout")
    form.add_argument("--markdown", action="store_true", help="a table in Markdown")
    asked = parser.parse_args(arguments)
    if asked.arms and len(asked.files) != 1:
        parser.error("--arms: compares two arms of one file; give one")
    if asked.arms and asked.absolute:
        parser.error("--absolute: two arms of one run are paired by round already")
    if not asked.arms and len(asked.files) != 2:
        parser.error(f"{len(asked.files)} files: give A and B, or one file with --arms X,Y")
    return asked


def _two(text: str) -> tuple[str, str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names):
        raise argparse.ArgumentTypeError(f"{text!r}: give two names, separated by a comma")
    return names[0], names[1]


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a share from 0 to below 1: 0.01 is 1 %")
    return value


def _arm(path: Path, result: SuiteResult, name: str) -> str:
    """Return the arm of the file that `name` means: its whole name, or an alias that only one arm has.

    Aliases of ``agentcompile=slow:0.03`` are ``slow:0.03`` and ``slow``.

    Raises:
        AgentCompileError: no case has an arm of this name (usage).
    """
    known = list(dict.fromkeys(arm.name for case in result.cases for arm in case.arms))
    if name in known:
        return name
    meant = [one for one in known if name in (one.partition("=")[2], one.partition("=")[2].partition(":")[0])]
    if name and len(meant) == 1:
        return meant[0]
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else f"arms: {', '.join(known) or 'none'}"
    raise AgentCompileError(f"{path}: --arms: no arm is called {name!r}", hint=hint)


def _comparable(paths: Sequence[Path], runs: Sequence[SuiteResult], found: Sequence[Difference], anyway: bool) -> None:
    names = f"{paths[0]}, {paths[1]}"
    if not common_cases(*runs):
        hint = f"A has {_cases(runs[0])}; B has {_cases(runs[1])}"
        raise AgentCompileError(f"{names}: have no case in common", exit_code=ExitCode.DRIFT, hint=hint)
    if not anyway and (refused := [one.text for one in found if one.refuses]):
        raise AgentCompileError(
            f"{names}: are not comparable: {'; '.join(refused)}",
            exit_code=ExitCode.DRIFT,
            hint="measure both on one machine under one policy, or compare with --anyway",
        )


def _cases(result: SuiteResult) -> str:
    return ", ".join(case.key for case in result.cases) or "none"


def differences(a: SuiteResult, b: SuiteResult) -> list[Difference]:
    """Return the differences between two runs; those that make them incomparable come first."""
    found = [
        *_told("machine", _device(a), _device(b), refuses=True),
        *_told("", {"policy": a.policy}, {"policy": b.policy}, refuses=True),
    ]
    cases_a, cases_b = ({case.key: case for case in result.cases} for result in (a, b))
    common = common_cases(a, b)
    for key in common:
        found += _told(key, _workload(cases_a[key]), _workload(cases_b[key]), refuses=True)
        if cases_a[key].prompt and cases_b[key].prompt:  # older files do not say
            found += _told(key, {"prompt": cases_a[key].prompt}, {"prompt": cases_b[key].prompt}, refuses=True)
    weights = [{model: one.weights for model, one in result.compiled.items() if one.weights} for result in (a, b)]
    both = weights[0].keys() & weights[1].keys()
    found += _told("weights of", *({model: side[model] for model in sorted(both)} for side in weights), refuses=True)
    only = [{"only": ", ".join(key for key in cases if key not in common)} for cases in (cases_a, cases_b)]
    found += _told("cases", only[0], only[1])
    found += _told("", _header(a), _header(b))
    locks = [{model: one.lock for model, one in result.compiled.items()} for result in (a, b)]
    found += _told("lock of", locks[0], locks[1])
    found += _told("environment", a.environment, b.environment)
    return [*found, *dict.fromkeys(one for key in common for one in _facts(cases_a[key], cases_b[key]))]


def _facts(a: Case, b: Case) -> Iterator[Difference]:
    for arm in a.arms:
        other = b.arm(arm.name)
        if other and arm.state == other.state == "measured":
            yield from _told(arm.name, arm.facts, other.facts)


def _device(result: SuiteResult) -> dict[str, str]:
    here = result.machine
    return {
        "kind": here.kind,
        "device": here.device,
        "arch": here.arch,
        "isa": " ".join(here.isa),
        "caches": " ".join(str(size) for size in here.cache_bytes),
        "threads": str(here.threads),
    }


def _workload(case: Case) -> dict[str, str]:
    tokens = {"prompt_tokens": str(case.prompt_tokens), "new_tokens": str(case.new_tokens)}
    return {**tokens, "baseline": case.baseline}


def _header(result: SuiteResult) -> dict[str, str]:
    return {
        "revision": result.sources(),
        "suite": result.suite,
        "seed": str(result.seed),
        "toolchain": result.machine.toolchain,
        **dict(result.machine.libraries),
    }


def _told(what: str, a: Mapping[str, str], b: Mapping[str, str], *, refuses: bool = False) -> list[Difference]:
    return [
        Difference(what=f"{what} {name}".strip(), a=a.get(name, ""), b=b.get(name, ""), refuses=refuses)
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def _side(path: Path, result: SuiteResult) -> dict[str, str]:
    told = {"file": str(path), "revision": result.sources(), "made": result.made, "device": result.machine.device}
    return {name: clean(text) for name, text in told.items()}


def _json(sides: Sequence[dict[str, str]], found: Sequence[Difference], report: Report) -> Json:
    """Return the comparison as JSON: times in s, ratios above 1 where B is faster, `level` for one interval."""
    rows: list[Json] = []
    for row in report.rows:
        value = encode(row)
        assert isinstance(value, dict)
        change = report.verdict(row) if isinstance(row, Compared) else None
        rows.append({**value, "verdict": change.comparison if change else None})
    return {
        "format": 1,
        "files": [dict(side) for side in sides],
        "differences": [encode(one) for one in found],
        **{name: getattr(report, name) for name in ("decides", "claim", "alpha", "comparisons", "level")},
        "rows": rows,
    }


def _table(report: Report) -> Table:
    other = {"ratio": "absolute", "absolute": "ratio", "paired": ""}[report.decides]
    heads = ["case", "arm", "time", "A", "B", _VIEWS[report.decides], "interval", "agree", "verdict"]
    heads += [_VIEWS[other], "interval"] if other else []
    cells = [tuple(clean(cell) for cell in _cells(report, row, other)) for row in report.rows]
    return Table(heads=(*heads, "note"), rows=cells, right=(3, 4, 5, 9) if other else (3, 4, 5))


def _cells(report: Report, row: Row, other: str) -> tuple[str, ...]:
    match row:
        case Unmeasured():
            rest = ("-", "") if other else ()
            verdict = "WRONG" if row.b == "wrong" else "-"
            return (row.case, row.arm, "-", row.a, row.b, "-", "", "-", verdict, *rest, row.reason)
        case Compared():
            change = report.verdict(row)
            beside = {str(view): one for view, one in row.changes.items()}.get(other)
            times = ("-" if time is None else duration(time * 1e9) for time in (row.a_s, row.b_s))
            verdict, note = (change.comparison, change.why) if change else ("-", "the baseline")
            shown = _span(beside) if other else ()
            note = "; ".join(filter(None, (note, *(f"{side}: {VARIES}" for side in row.varies))))
            agree = _AGREE[change.agrees if change else None]
            return (row.case, row.arm, _QUANTITIES[row.quantity], *times, *_span(change), agree, verdict, *shown, note)


def _span(change: Change | None) -> tuple[str, str]:
    if change is None or change.span is None:
        return "-", ""
    return f"{change.span.value:.3f}", f"{change.span.low:.3f} … {change.span.high:.3f}"


def _markdown(table: Table) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---:" if i in table.right else "---" for i in range(len(table.heads))]
    return [line(table.heads), line(rule), *(line(row) for row in table.rows)]


def _summary(report: Report) -> str:
    changes = [report.verdict(row) for row in report.rows if isinstance(row, Compared)]
    counts = Counter(change.comparison for change in changes if change)
    told = ", ".join(f"{counts[name]} {name}" for name in ("FASTER", "SLOWER", "SAME", "INCONCLUSIVE") if counts[name])
    agree = sum(change.agrees is True for change in changes if change)
    untold = f", not known of {len(report.untold)}" if report.untold else ""
    wrong = f"; {len(report.wrong)} WRONG in B" if report.wrong else ""
    return (
        f"{told or 'nothing to compare'}{wrong} (claim {report.claim:.1%}; {report.comparisons} comparisons, "
        f"whose intervals hold together with {1 - report.alpha:.0%}, each with {1 - report.level:.2%}); "
        f"{agree} of {report.comparisons} agree within their intervals{untold}"
    )
