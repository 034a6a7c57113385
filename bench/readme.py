"""`agentcompile bench readme`: the figures of README.md and docs/benchmarks.md, from the committed results alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.measure.policy import POLICY

from .figures.record import Figure
from .harness.means import with_totals
from .harness.result import Case, SuiteResult, read_result
from .harness.trial import LLAMA, OURS
from .refine.markdown import rows as study_rows
from .refine.recipe import read as read_study
from .report.cells import number
from .report.markdown import brief, device
from .suite.verdicts import compare_runs

_ROOT = Path(__file__).resolve().parents[1]
RESULTS = _ROOT / "bench" / "results"
_TELLING = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
REPEATS = "repeat"
"""The folder of second runs, whose files have the same names."""
_TIMES = {"total": "time of a request", "token": "time per token", "first": "first token"}
_SUITES = ("*-suite*.json", "*-ladder*.json")
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def run(arguments: Sequence[str]) -> int:
    """Rewrite the parts of both files between their marks, or with `--check` return whether they are up to date."""
    parser = argparse.ArgumentParser(prog="agentcompile bench readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 3 when a file is out of date")
    asked = parser.parse_args(arguments)
    code = ExitCode.OK
    for path, lines in PAGES.items():
        old = path.read_text(encoding="utf-8")
        new = updated(path.name, old, lines(RESULTS))
        if new != old and asked.check:
            print(f"{path.relative_to(_ROOT)} is out of date: just bench readme")
            code = ExitCode.DRIFT
        elif new != old:
            path.write_text(new, encoding="utf-8")
    return code


def updated(name: str, text: str, lines: Iterable[str]) -> str:
    """Return the `text` of the file `name` with `lines` between its marks.

    Raises:
        AgentCompileError: the marks around the figures are gone (usage).
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise AgentCompileError(f"{name}: the marks around the figures are gone", hint=f"put back {BEGIN}{END}")
    return "".join([head, begin, *(f"{line}\n" for line in lines), end, tail])


def headline(results: Path) -> Iterator[str]:
    """Yield the tables of the README: whole requests, then first tokens by length of the prompt.

    The first has each workload of the suites, greedy, beside eager and the best compiled peer. Of two arms that PyTorch
    compiles with max-autotune the faster one counts. An arm without a ratio in a case (it failed, or was not installed)
    is a dash there.
    """
    heads = ("model, machine", "workload (tokens in, out)", "max-autotune", "llama.cpp")
    ours = ("**agentcompile**, 95 %", "per token", "× roofline")
    yield f"| {' | '.join((*heads, *ours))} |"
    yield f"|---|---|{'--:|' * (len(heads) + len(ours) - 2)}"
    for path in _suites(results, "*-suite*.json"):
        result = with_totals(read_result(path))
        for case in (case for case in result.cases if case.mode == "greedy"):
            yield f"| {' | '.join(_row(result, case))} |"

    yield ""
    yield "First tokens, by length of the prompt. PyTorch's is its fastest arm in that run, compiled or not. The"
    yield "roofline is the longer of two times: all operations at the measured matrix rate, and all weights read once."
    yield ""
    yield "| model, machine | tokens | PyTorch | llama.cpp | **agentcompile** | × roofline |"
    yield "|---|--:|--:|--:|--:|--:|"
    for run in _read(results, "*-firsts*.json"):
        for prompt, arms in run["prompts"].items():
            yield f"| {' | '.join(_first(run, prompt, arms))} |"


def _first(run: Mapping[str, Any], prompt: str, arms: Mapping[str, Any]) -> Iterator[str]:
    times = {name: float(row["median_ms"]) for name, row in arms.items()}
    yield f"{run['model']}, {_machine(run['machine']).partition(',')[0].replace('(R)', '')}"
    yield prompt
    peers = [ms for name, ms in times.items() if name not in (OURS, LLAMA)]
    yield f"{number(min(peers), 3)} ms" if peers else "-"
    yield f"{number(times[LLAMA], 3)} ms" if LLAMA in times else "-"
    yield f"**{number(times[OURS], 3)} ms**" if OURS in times else "-"
    yield _over_floor(run, prompt, times[OURS]) if OURS in times else "-"


def _over_floor(run: Mapping[str, Any], prompt: str, ms: float) -> str:
    floor = run.get("floor_ms", {}).get(prompt)
    return f"{ms / floor:.2f}" if floor else "-"


def _row(result: SuiteResult, case: Case) -> Iterator[str]:
    yield f"{case.model}, {device(result).partition(',')[0].replace('(R)', '')}"
    yield f"{case.workload} ({case.prompt_tokens}, {case.new_tokens})"
    for kind in ("max-autotune", "llama.cpp"):
        found = [arm.total_speedup.value for arm in case.arms if arm.name.endswith(kind) and arm.total_speedup]
        yield f"{max(found):.3g}×" if found else "-"
    arm = case.arm(OURS)
    if arm is None or arm.total_speedup is None or arm.speedup is None:
        yield from ("-", "-", "-")
        return
    total = arm.total_speedup
    yield f"**{total.value:.3g}×** ({total.low:.3g}–{total.high:.3g})"
    yield f"{arm.speedup.value:.3g}×"
    yield "-" if arm.times_floor is None else f"{arm.times_floor:.2f}"


def details(results: Path) -> Iterator[str]:
    """Yield the tables of docs/benchmarks.md.

    First come `*-figures*.json`, oldest first, then further measurements on a GPU (`*-steps*.json`, `*-firsts*.json`,
    `*-long*.json`), studies of agents (`refine/tasks*.json`), then suites and ladders.
    """
    for run in sorted(_read(results, "*-figures*.json"), key=lambda run: str(run["made"])):
        yield from _run(run)
    for pattern, told in (("*-steps*.json", _steps), ("*-firsts*.json", _firsts), ("*-long*.json", _long)):
        for run in _read(results, pattern):
            yield from told(run)
    for path in sorted((results / "refine").glob("tasks*.json")):
        yield from _refined(path)
    for pattern in _SUITES:
        for path in _suites(results, pattern):
            yield from _suite(path)


PAGES: Mapping[Path, Callable[[Path], Iterator[str]]] = {
    _ROOT / "README.md": headline,
    _ROOT / "docs" / "benchmarks.md": details,
}
"""The files with figures, and what makes the lines between their marks from a folder of results."""


def _suites(results: Path, pattern: str) -> list[Path]:
    return [path for path in sorted(results.glob(pattern)) if not path.stem.endswith(".samples")]


def _read(results: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob(pattern))]


def _steps(run: Mapping[str, Any]) -> Iterator[str]:
    yield f"`{run['command']}` on {_machine(run['machine'])}; {run['read_bytes_per_s'] / 1e9:.0f} GB/s read;"
    yield f"{run['machine']['toolchain']}; {_revision(run)}. Times reading: over what the bytes of"
    yield "weights and cache take at the read rate of the same process."
    for title, rows in (
        ("tokens in the cache", run["by_position"]),
        ("sequences", run["by_batch"]),
        ("launches", run["ladder"]),
        ("region, a site", run["regions"]),
    ):
        if rows:
            yield ""
            yield f"| {run['model']}: {title} | µs | GB/s | times reading |"
            yield "|---|--:|--:|--:|"
            for row in rows:
                # A region that reads next to nothing has no rate worth a number.
                told = row["bytes"] > 1 << 20
                rate = f"{row['bytes'] / row['ns']:.0f}" if told else "-"
                times = f"{row['times_floor']:.2f}" if told else "-"
                yield f"| {row['name']} | {row['ns'] / 1e3:.4g} | {rate} | {times} |"
    yield ""


def _refined(path: Path) -> Iterator[str]:
    study, run = read_study(path), json.loads(path.read_text(encoding="utf-8"))
    yield f"`{run['command']}` on {_machine(run['machine'])}; {_revision(run)}."
    yield f"Kernels that agents wrote for tasks, at most {study.attempts} attempts a session; answers by"
    yield f"{', '.join(study.models)}. The speed-up of each session's best kernel over PyTorch's"
    yield "fastest form, with its 95 % interval, and how many of its attempts were right."
    yield ""
    yield from study_rows(study)
    yield ""


def _firsts(run: Mapping[str, Any]) -> Iterator[str]:
    yield f"`{run['command']}` on {_machine(run['machine'])}; {_revision(run)}."
    yield ""
    yield f"| {run['model']}: tokens of the prompt | arm | first token, ms | × roofline | times ours, 95 % interval |"
    yield "|--:|---|--:|--:|--:|"
    for prompt, arms in run["prompts"].items():
        for arm, row in arms.items():
            times = _over_floor(run, prompt, row["median_ms"])
            yield f"| {prompt} | {arm} | {number(row['median_ms'], 3)} | {times} | {row['time_over_ours'] or '-'} |"
    for arm, reason in run["reasons"].items():
        yield f"| | {arm} | - | - | failed: {reason} |"
    yield ""


def _long(run: Mapping[str, Any]) -> Iterator[str]:
    yield f"`{run['command']}` on {_machine(run['machine'])}; {_revision(run)}. Beside the model in fp32, the whole"
    yield "vocabulary: the error relative to the logits' norm, the divergence in nats."
    yield ""
    yield f"| {run['model']}: position | error | PyTorch's in bf16 | divergence | PyTorch's in bf16 |"
    yield "|--:|--:|--:|--:|--:|"
    for at in run["checkpoints"]:
        cells = [f"{at[name]:.3g}" for name in ("error", "eager_error", "kl", "eager_kl")]
        yield f"| {' | '.join([str(at['position']), *cells])} |"
    yield ""


def _suite(path: Path) -> Iterator[str]:
    result, plot = with_totals(read_result(path)), path.with_suffix(".svg")
    yield f"`{result.command}` on {device(result)}; {result.machine.toolchain}; {result.made[:10]},"
    yield f"revision {result.sources(digits=12)}. Speed-ups: of the time of a whole request, and of the time per token,"
    yield f"beside the case's baseline, paired by round, with a 95 % interval {_knows(result)}; × floor: over"
    yield f"reading weights and cache at the read rate measured there{_hosts(result)}."
    yield ""
    yield from brief(result)
    if plot.exists():
        yield f"![Speed-up of whole requests](../{plot.relative_to(_ROOT)})"
        yield ""
    again = path.parent / REPEATS / path.name
    if again.exists():
        yield from _again(path, result, again)


def _knows(result: SuiteResult) -> str:
    if (luck := result.luck.get("token")) is not None:
        than = f"{luck:.2g} times what rounds say" if luck > 1 else "no more than rounds say"
        return f"(its variance, as processes differ: {than})"
    count = len({timed.process for case in result.cases for timed in case.rounds})
    of = "one process of each arm" if count == 1 else f"{count} processes of each arm"
    return f"over the rounds of {of} (how processes differ is not in it)"


def _hosts(result: SuiteResult) -> str:
    count = len({timed.machine for case in result.cases for timed in case.rounds if timed.machine})
    return f", on {count} machines of the kind, each case on one" if count > 1 else ""


def _again(path: Path, result: SuiteResult, again: Path) -> Iterator[str]:
    report = compare_runs(result, read_result(again), claim=POLICY.claim)
    apart = [f"{row.arm}'s {_TIMES[row.quantity]} in {row.case}" for row in report.apart]
    names = f"`{path.relative_to(_ROOT)}` and `{again.relative_to(_ROOT)}`"
    told = f"; not {', nor '.join(apart)}" if apart else ""
    agree = report.comparisons - len(report.apart) - len(report.untold)
    yield f"Run twice ({names}; `agentcompile bench compare` shows both): of {report.comparisons} times beside the"
    yield f"baseline's, {agree} agree within their intervals, which hold together with {1 - report.alpha:.0%}{told}."
    yield ""


def _machine(machine: Mapping[str, Any]) -> str:
    wide = [isa for isa in machine["isa"] if isa in _TELLING]
    kind = "threads" if machine["kind"] == "cpu" else "multiprocessors"
    return ", ".join([machine["device"], f"{machine['threads']} {kind}", *wide])


def _run(run: Mapping[str, Any]) -> Iterator[str]:
    yield from _conditions(run)
    yield ""
    noted = any(found["note"] for part in run["models"].values() for found in part["arms"].values())
    yield f"| model | arm | tokens/s | first token, ms |{' note |' if noted else ''}"
    yield f"|---|---|--:|--:|{'---|' if noted else ''}"
    for model, part in run["models"].items():
        for arm, found in part["arms"].items():
            rate, first = found["tokens_per_s"], found["first_token_s"]
            cells = ["-", "-"] if rate is None else [f"{rate:.4g}", f"{first * 1e3:.3g}"]
            cells += [found["note"].replace("|", "\\|")] if noted else []
            yield f"| {' | '.join([model, arm, *cells])} |"
    yield ""
    yield "| model | figure | found | 95 % interval | wanted | |"
    yield "|---|---|--:|--:|--:|---|"
    for found in run["figures"]:
        figure = Figure(**{name: value for name, value in found.items() if name != "verdict"})
        verdict = {"PASS": "reached", "short": "**short**"}.get(figure.verdict, figure.note or "not measured")
        if figure.low is not None and figure.high is not None and figure.low < figure.target < figure.high:
            verdict += ", undecided"  # by its interval
        name = figure.name.replace("|", "\\|")
        yield f"| {' | '.join([figure.model, name, *figure.cells, verdict])} |"
    yield ""


def _conditions(run: Mapping[str, Any]) -> Iterator[str]:
    machine, versions = run["machine"], dict[str, str]()
    for part in run["models"].values():
        for found in part["arms"].values():
            facts = found["facts"]
            versions |= {name: facts[name] for name in ("torch", "transformers", "llama_cpp_python") if name in facts}
    reads = ", ".join(
        f"{part['read_bytes_per_s'] / 1e9:.1f} GB/s read" for part in run["models"].values() if part["read_bytes_per_s"]
    )
    shown = " · ".join(f"{name.replace('_', '-')} {version}" for name, version in versions.items())
    yield f"`{run['command']}` on {_machine(machine)}; {reads}; {machine['toolchain']} · {shown}; {run['made'][:10]},"
    processes = max((one["process"] + 1 for part in run["models"].values() for one in part["rounds"]), default=0)
    of = "one process of each arm" if processes == 1 else f"{processes} processes of each arm"
    yield f"{_revision(run)}. Intervals are over the rounds of {of}; how processes differ is not in them."


def _revision(run: Mapping[str, Any]) -> str:
    changed = " with changes" if run["changed_since"] else ""
    return f"revision {run['revision'][:12]}{changed}"
