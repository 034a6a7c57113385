"""`agentcompile bench readme`: the README's figures, made from the committed results and from nothing else."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.measure.policy import POLICY

from .figures.record import Figure
from .harness.result import SuiteResult, read_result
from .report.markdown import brief, device
from .suite.verdicts import compare_runs

_ROOT = Path(__file__).resolve().parents[1]
RESULTS = _ROOT / "bench" / "results"
_TELLING = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
REPEATS = "repeat"
"""The folder of second runs, whose files have the same names."""
_TIMES = {"token": "time per token", "first": "first token"}
_SUITES = ("*-suite*.json", "*-ladder*.json")
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def run(arguments: Sequence[str]) -> int:
    """Rewrite the part of README.md between its two marks, or with `--check` return whether it is up to date."""
    parser = argparse.ArgumentParser(prog="agentcompile bench readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 3 when README.md is out of date")
    asked = parser.parse_args(arguments)
    path = _ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = updated(old, RESULTS)
    if asked.check:
        return ExitCode.OK if new == old else ExitCode.DRIFT
    path.write_text(new, encoding="utf-8")
    return ExitCode.OK


def updated(readme: str, results: Path) -> str:
    """Return the text `readme` with its figures replaced by those of the files in `results`.

    First come `*-figures*.json`, oldest first, then further measurements on a GPU (`*-steps*.json`, `*-firsts*.json`,
    `*-long*.json`), then suites and ladders.

    Raises:
        AgentCompileError: the marks around the figures are gone (usage).
    """
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise AgentCompileError("README.md: the marks around the figures are gone", hint=f"put back {BEGIN}{END}")
    runs = sorted(_read(results, "*-figures*.json"), key=lambda run: str(run["made"]))
    parts = [line for run in runs for line in _run(run)]
    for pattern, told in (("*-steps*.json", _steps), ("*-firsts*.json", _firsts), ("*-long*.json", _long)):
        parts += [line for run in _read(results, pattern) for line in told(run)]
    found = [path for part in _SUITES for path in sorted(results.glob(part)) if not path.stem.endswith(".samples")]
    parts += [line for path in found for line in _suite(path)]
    return "".join([head, begin, *(f"{line}\n" for line in parts), end, tail])


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


def _firsts(run: Mapping[str, Any]) -> Iterator[str]:
    yield f"`{run['command']}` on {_machine(run['machine'])}; {_revision(run)}."
    yield ""
    yield f"| {run['model']}: tokens of the prompt | arm | first token, ms | times ours, 95 % interval |"
    yield "|--:|---|--:|--:|"
    for prompt, arms in run["prompts"].items():
        for arm, row in arms.items():
            yield f"| {prompt} | {arm} | {row['median_ms']:.3g} | {row['time_over_ours'] or '-'} |"
    for arm, reason in run["reasons"].items():
        yield f"| | {arm} | - | failed: {reason} |"
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
    result, plot = read_result(path), path.with_suffix(".svg")
    yield f"`{result.command}` on {device(result)}; {result.machine.toolchain}; {result.made[:10]},"
    yield f"revision {result.sources(digits=12)}. Speed-up: of the time per token beside the case's baseline, paired by"
    yield f"round, with a 95 % interval {_knows(result)}; × floor: over"
    yield f"reading weights and cache at the read rate measured there{_hosts(result)}."
    yield ""
    yield from brief(result)
    if plot.exists():
        yield f"![The same as a plot]({plot.relative_to(_ROOT)})"
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
