"""`agentcompile bench readme`: README.md's and docs/benchmarks.md's figures and bounds.toml, from committed results."""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.measure.policy import POLICY

from .figures.record import Figure
from .harness.means import with_totals
from .harness.result import Case, Interval, SuiteResult, read_result, results_in
from .harness.trial import LLAMA, OURS
from .refine.markdown import rows as study_rows
from .refine.recipe import read as read_study
from .report.cells import number
from .report.markdown import brief, device
from .suite.bounds import BOUNDS, bounds_from
from .suite.verdicts import compare_runs

_ROOT = Path(__file__).resolve().parents[1]
RESULTS = _ROOT / "bench" / "results"
_WIDTH = 120
_IN_PYTORCH = (
    "Prompts ran in PyTorch when this was measured; on a CPU they run on kernels since (tables of first tokens)."
)
_WITHOUT_BF16 = f"{_IN_PYTORCH} This processor has no instructions for bf16."
NOTES: Mapping[str, str] = {
    "cpu-figures-sample.json": _WITHOUT_BF16,
    "cpu-figures-qwen3-0.6b.json": _WITHOUT_BF16,
    "cpu-figures-qwen3-0.6b-4-cores.json": _IN_PYTORCH,
    "cpu-ladder-sample.json": _IN_PYTORCH,
}
"""What a reader must know of a result, by its file: what has changed since it was measured."""
BEFORE = "-before-"
"""In the names of studies that a mended fault spoiled, which the pages leave out."""
_LISTED = 4
"""The most tasks whose names fit a heading."""
_SMALL, _LARGE = "sample", "qwen3-0.6b"
"""The models of a CPU whose weights stay in the cache, and do not."""
_TELLING = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
REPEATS = "repeat"
"""The folder of second runs, whose files have the same names."""
_TIMES = {"total": "time of a request", "token": "time per token", "first": "first token"}
_SUITES = ("*-suite*.json", "*-ladder*.json")
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
_TOML = "# figures: begin\n", "# figures: end\n"


def run(arguments: Sequence[str]) -> int:
    """Rewrite the parts of the files between their marks, or with `--check` return whether they are up to date."""
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
    marks = _TOML if name.endswith(".toml") else (BEGIN, END)
    head, begin, rest = text.partition(marks[0])
    _, end, tail = rest.partition(marks[1])
    if not begin or not end:
        raise AgentCompileError(f"{name}: the marks around the figures are gone", hint=f"put back {''.join(marks)}")
    return "".join([head, begin, *(f"{line}\n" for line in lines), end, tail])


def headline(results: Path) -> Iterator[str]:
    """Yield the tables of the README: whole requests, then first tokens by length of the prompt.

    The first has each workload of the suites, greedy, beside eager and the best compiled peer. Of two arms that PyTorch
    compiles with max-autotune the faster one counts. An arm without a ratio in a case (it failed, or was not installed)
    is a dash there. Of a ratio whose interval is wide, no size is shown as a result.
    """
    yield from _scale(results)
    yield ""
    heads = ("model, machine", "workload (tokens in, out)", "max-autotune", "llama.cpp")
    ours = ("**agentcompile**, 95 %", "per token", "× roofline")
    yield f"| {' | '.join((*heads, *ours))} |"
    yield f"|---|---|{'--:|' * (len(heads) + len(ours) - 2)}"
    for path in results_in(results, "*-suite*.json"):
        result = with_totals(read_result(path))
        for case in (case for case in result.cases if case.mode == "greedy"):
            yield f"| {' | '.join(_row(result, case))} |"

    yield ""
    yield "First tokens, by length of the prompt; bold: ours is the earliest. PyTorch's is its fastest arm in that run,"
    yield "compiled or not. The roofline is the longer of two times: all operations at the measured matrix rate, and"
    yield "all weights read once."
    yield ""
    yield "| model, machine | tokens | PyTorch | llama.cpp | **agentcompile** | × roofline |"
    yield "|---|--:|--:|--:|--:|--:|"
    for run in _read(results, "*-firsts*.json"):
        for prompt, arms in run["prompts"].items():
            yield f"| {' | '.join(_first(run, prompt, arms))} |"


def _scale(results: Path) -> Iterator[str]:
    """Yield how small the smallest model is, and how fast one that no cache holds decodes on CPUs."""
    parameters, told = dict[str, int](), list[str]()
    for run in sorted(_read(results, "cpu-figures*.json"), key=lambda run: str(run["made"]), reverse=True):
        parameters |= {name: part["parameters"] for name, part in run["models"].items()}
        found = {one["name"]: one for one in run["figures"] if one["model"] == _LARGE and one["value"] is not None}
        eager, llama = (found.get(f"decode vs {arm}") for arm in ("hf-eager", LLAMA))
        if eager and llama:
            times = [f"{one['value']:.3g} times ({one['low']:.3g}–{one['high']:.3g})" for one in (eager, llama)]
            machine = f"{_short(run['machine'])}, {run['machine']['threads']} threads"
            told.append(f"{times[0]} as fast as eager and {times[1]} as fast as llama.cpp ({machine})")
    small, large = (parameters[name] / 1e6 for name in (_SMALL, _LARGE))
    text = (
        f"`{_SMALL}` is a model of {small:.1f} M parameters whose weights stay in the cache. On a CPU, {_LARGE}, whose "
    )
    text += f"{large:.0f} M parameters do not, decodes {', and '.join(told)}."
    yield from textwrap.wrap(text, _WIDTH)


def _first(run: Mapping[str, Any], prompt: str, arms: Mapping[str, Any]) -> Iterator[str]:
    times = {name: float(row["median_ms"]) for name, row in arms.items()}
    yield f"{run['model']}, {_short(run['machine'])}"
    yield prompt
    peers = [ms for name, ms in times.items() if name not in (OURS, LLAMA)]
    yield f"{number(min(peers), 3)} ms" if peers else "-"
    yield f"{number(times[LLAMA], 3)} ms" if LLAMA in times else "-"
    bold = "**" if OURS in times and times[OURS] == min(times.values()) else ""
    yield f"{bold}{number(times[OURS], 3)} ms{bold}" if OURS in times else "-"
    yield _over_floor(run, prompt, times[OURS]) if OURS in times else "-"


def _over_floor(run: Mapping[str, Any], prompt: str, ms: float) -> str:
    floor = run.get("floor_ms", {}).get(prompt)
    return f"{ms / floor:.2f}" if floor else "-"


def _row(result: SuiteResult, case: Case) -> Iterator[str]:
    yield f"{case.model}, {_short(asdict(result.machine))}"
    yield f"{case.workload} ({case.prompt_tokens}, {case.new_tokens})"
    for kind in ("max-autotune", "llama.cpp"):
        found = [arm.total_speedup for arm in case.arms if arm.name.endswith(kind) and arm.total_speedup]
        yield ratio(max(found, key=lambda one: one.value)) if found else "-"
    arm = case.arm(OURS)
    if arm is None or arm.total_speedup is None or arm.speedup is None:
        yield from ("-", "-", "-")
        return
    yield ratio(arm.total_speedup, bold="**", ends=True)
    yield ratio(arm.speedup)
    yield "-" if arm.times_floor is None else f"{arm.times_floor:.2f}"


def ratio(found: Interval, *, bold: str = "", ends: bool = False) -> str:
    """Return the text of a ratio: one with a wide interval is never bold and says that its size is inconclusive."""
    bold = "" if found.wide else bold
    text = f"{bold}{found.value:.3g}×{bold}" + (f" ({found.low:.3g}–{found.high:.3g})" if ends else "")
    return f"{text}, inconclusive" if found.wide else text


def details(results: Path) -> Iterator[str]:
    """Yield the tables of docs/benchmarks.md.

    Each has a heading. First come `*-figures*.json`, oldest first, then further measurements (`*-steps*.json`,
    `*-firsts*.json`, `*-long*.json`), studies of agents (`refine/tasks*.json`), then suites and ladders.
    """
    for run in sorted(_read(results, "*-figures*.json"), key=lambda run: str(run["made"])):
        yield from _run(run)
    for pattern, told in (("*-steps*.json", _steps), ("*-firsts*.json", _firsts), ("*-long*.json", _long)):
        for run in _read(results, pattern):
            yield from told(run)
    for path in sorted((results / "refine").glob("tasks*.json")):
        if BEFORE not in path.name:
            yield from _refined(path)
    for pattern in _SUITES:
        for path in results_in(results, pattern):
            yield from _suite(path)


PAGES: Mapping[Path, Callable[[Path], Iterator[str]]] = {
    _ROOT / "README.md": headline,
    _ROOT / "docs" / "benchmarks.md": details,
    BOUNDS: bounds_from,
}
"""The files with figures, and what makes the lines between their marks from a folder of results."""


def _read(results: Path, pattern: str) -> list[dict[str, Any]]:
    found = sorted(results.glob(pattern))
    return [{**json.loads(path.read_text(encoding="utf-8")), "file": path.name} for path in found]


def _heading(models: Iterable[str], machine: Mapping[str, Any], what: str, file: str) -> Iterator[str]:
    threads = f", {machine['threads']} threads" if machine["kind"] == "cpu" else ""
    yield f"### {', '.join(models)} on {_short(machine)}{threads}: {what}"
    yield ""
    if file in NOTES:
        yield f"**{NOTES[file]}**"
        yield ""


def _steps(run: Mapping[str, Any]) -> Iterator[str]:
    what = "decode steps of several sequences" if run["by_batch"] else "the decode step"
    yield from _heading([run["model"]], run["machine"], what, run["file"])
    yield f"`{run['command']}` on {_machine(run['machine'])}; {run['read_bytes_per_s'] / 1e9:.0f} GB/s read;"
    yield f"{run['machine']['toolchain']}; {_revision(run)}. × roofline: over what reading the"
    yield "bytes of weights and cache takes at the read rate of the same process."
    for title, rows in (
        ("tokens in the cache", run["by_position"]),
        ("sequences", run["by_batch"]),
        ("launches", run["ladder"]),
        ("region, each", run["regions"]),
    ):
        if rows:
            yield ""
            yield f"| {run['model']}: {title} | µs | GB/s | × roofline |"
            yield "|---|--:|--:|--:|"
            for row in rows:
                # A region that reads next to nothing has no rate worth a number.
                told = row["bytes"] > 1 << 20
                rate = f"{row['bytes'] / row['ns']:,.0f}" if told else "-"
                times = f"{row['times_floor']:.2f}" if told else "-"
                yield f"| {row['name']} | {number(row['ns'] / 1e3)} | {rate} | {times} |"
    yield ""


def _refined(path: Path) -> Iterator[str]:
    study, run = read_study(path), json.loads(path.read_text(encoding="utf-8"))
    names = [task.name for task in study.tasks]
    shown = names if len(names) <= _LISTED else [f"{len(names)} tasks"]
    yield from _heading(shown, run["machine"], f"kernels by {' and '.join(study.arms)}", path.name)
    yield f"`{run['command']}` on {_machine(run['machine'])}; {_revision(run)}."
    yield f"Kernels that agents wrote for tasks, at most {study.attempts} attempts a session; answers by"
    yield f"{', '.join(study.models)}. The speed-up of each session's best kernel over PyTorch's"
    yield "fastest form in the same run, with its 95 % interval, and how many of its attempts were right. Ratios of two"
    yield "files do not compare arms: each is beside PyTorch in its own run."
    yield ""
    yield from study_rows(study)
    yield ""


def _firsts(run: Mapping[str, Any]) -> Iterator[str]:
    yield from _heading([run["model"]], run["machine"], "first tokens", run["file"])
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
    yield from _heading([run["model"]], run["machine"], "logits far into the cache", run["file"])
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
    what = "rungs of the ladder" if "-ladder" in path.stem else "whole requests"
    models = dict.fromkeys(case.model for case in result.cases)
    yield from _heading(models, asdict(result.machine), what, path.name)
    yield f"`{result.command}` on {device(result)}; {result.machine.toolchain}; {result.made[:10]},"
    yield f"revision {result.sources(digits=12)}. Speed-ups: of the time of a whole request, and of the time per token,"
    yield f"beside the case's baseline, paired by round, with a 95 % interval {_knows(result)}; × roofline:"
    yield f"over reading weights and cache at the read rate measured there{_hosts(result)}."
    yield ""
    yield from brief(result)
    if plot.exists():
        yield f"![Speed-up of whole requests](../{plot.relative_to(_ROOT)})"
        yield ""
    again = path.parent / REPEATS / path.name
    if again.exists():
        yield from _again(path, result, again)


def _knows(result: SuiteResult) -> str:
    if (effect := result.luck.get("token")) is not None:
        than = f"{effect:.2g} times" if effect > 1 else "no more than"
        return f"(its variance is {than} that of rounds alone, as processes differ)"
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


def _short(machine: Mapping[str, Any]) -> str:
    """Return the machine's name as tables have it, with what makes its matrix rate another."""
    name = re.sub(r"\(R\)| Processor| @.*", "", machine["device"])
    return f"{name} (AMX)" if "amx_bf16" in machine["isa"] else name


def _run(run: Mapping[str, Any]) -> Iterator[str]:
    yield from _heading(run["models"], run["machine"], "rates and targets", run["file"])
    yield from _conditions(run)
    yield ""
    noted = any(found["note"] for part in run["models"].values() for found in part["arms"].values())
    yield f"| model | arm | tokens/s | tokens of the prompt | first token, ms |{' note |' if noted else ''}"
    yield f"|---|---|--:|--:|--:|{'---|' if noted else ''}"
    for model, part in run["models"].items():
        for arm, found in part["arms"].items():
            rate, first = found["tokens_per_s"], found["first_token_s"]
            prompt = str(part["prompt_tokens"])
            cells = ["-", prompt, "-"] if rate is None else [number(rate), prompt, number(first * 1e3, 3)]
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
