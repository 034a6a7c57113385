"""`agentcompile bench readme`: the README's figures, made from the committed results and from nothing else."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentcompile.errors import AgentCompileError, ExitCode

from .report import Figure

_ROOT = Path(__file__).resolve().parents[2]
RESULTS = _ROOT / "bench" / "results"
_TELLING = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def run(arguments: Sequence[str]) -> int:
    """Rewrite the part of README.md between its two marks, or with `--check` say whether it is up to date."""
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
    """`readme` with the figures of the files `cpu-figures*.json` in `results`, oldest first."""
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise AgentCompileError("README.md: the marks around the figures are gone", hint=f"put back {BEGIN}{END}")
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in results.glob("cpu-figures*.json")]
    parts = [line for run in sorted(runs, key=lambda run: str(run["made"])) for line in _run(run)]
    return "".join([head, begin, *(f"{line}\n" for line in parts), end, tail])


def _run(run: Mapping[str, Any]) -> Iterator[str]:
    yield from _conditions(run)
    yield ""
    yield "| model | arm | tokens/s | first token, ms |"
    yield "|---|---|--:|--:|"
    for model, part in run["models"].items():
        for arm, found in part["arms"].items():
            rate, first = found["tokens_per_s"], found["first_token_s"]
            cells = ["-", "-"] if rate is None else [f"{rate:.4g}", f"{first * 1e3:.3g}"]
            yield f"| {' | '.join([model, arm, *cells])} |"
    yield ""
    yield "| model | figure | found | 95 % interval | wanted | |"
    yield "|---|---|--:|--:|--:|---|"
    for found in run["figures"]:
        figure = Figure(**{name: value for name, value in found.items() if name != "verdict"})
        verdict = {"PASS": "reached", "short": "**short**"}.get(figure.verdict, "not measured")
        name = figure.name.replace("|", "\\|")
        yield f"| {' | '.join([figure.model, name, *figure.cells, verdict])} |"
    yield ""


def _conditions(run: Mapping[str, Any]) -> Iterator[str]:
    """A sentence on the machine, the versions and the command."""
    machine, versions = run["machine"], dict[str, str]()
    for part in run["models"].values():
        for found in part["arms"].values():
            facts = found["facts"]
            versions |= {name: facts[name] for name in ("torch", "transformers", "llama_cpp_python") if name in facts}
    wide = [isa for isa in machine["isa"] if isa in _TELLING]
    cores = f"{machine['device']}, {machine['threads']} threads, {', '.join(wide)}"
    reads = ", ".join(
        f"{part['read_bytes_per_s'] / 1e9:.1f} GB/s read" for part in run["models"].values() if part["read_bytes_per_s"]
    )
    shown = " · ".join(f"{name.replace('_', '-')} {version}" for name, version in versions.items())
    yield f"`{run['command']}` on {cores}; {reads}; {machine['toolchain']} · {shown}; {run['made'][:10]},"
    yield f"revision {run['revision'][:12]}."
