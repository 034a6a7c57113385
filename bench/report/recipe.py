"""`agentcompile bench report`: a suite's result as Markdown, as plots, and as one page that needs nothing beside it.

In: a result file. Out: a folder with ``report.md``, ``report.html`` and a PNG and an SVG of every plot. The same
result gives the same bytes with the same versions installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from agentcompile.errors import AgentCompileError, ExitCode

from ..harness.means import with_totals
from ..harness.records import say_next
from ..harness.result import read_result
from . import plots
from .markdown import markdown
from .page import page


def run(arguments: Sequence[str]) -> int:
    """Write the report of one result, print the paths of its files, and return 0."""
    parser = argparse.ArgumentParser(prog="agentcompile bench report", description=__doc__)
    parser.add_argument("result", type=Path, help="a file that the suite wrote")
    parser.add_argument("--out", type=Path, help="the folder; unless given, RESULT-report beside the result")
    asked = parser.parse_args(arguments)
    result = with_totals(read_result(asked.result))
    folder = asked.out or asked.result.with_name(f"{asked.result.stem}-report")
    lacking = plots.lacking()
    drawn = () if lacking else plots.draw(result)
    named: dict[str, list[tuple[str, str]]] = {}
    for plot in drawn:
        named.setdefault(plot.model, []).append((plot.title, f"{plot.name}.png"))
    files = {"report.md": markdown(result, named).encode(), "report.html": page(result, drawn).encode()}
    for plot in drawn:
        files |= {f"{plot.name}.png": plot.png, f"{plot.name}.svg": plot.svg.encode()}
    for name, content in files.items():
        _write(folder, name, content)
        print(folder / name)
    if lacking:
        print(f"no plots: {lacking}")
    say_next(f"open {quote(str(folder / 'report.html'))} in a browser")
    return ExitCode.OK


def _write(folder: Path, name: str, content: bytes) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    except OSError as error:
        at = error.filename or folder / name
        raise AgentCompileError(
            f"--out {folder}: {at}: {error.strerror}", hint="name a folder that you may write to with --out"
        ) from error
