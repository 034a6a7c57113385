"""The verbs `runs pack` and `runs unpack`: a run to one file, and back to a run directory that can be resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote

from agentcompile.checkpoint.names import is_here
from agentcompile.cli.flow import REAL, Flow
from agentcompile.cli.looking import named
from agentcompile.cli.render import Screen
from agentcompile.errors import AgentCompileError
from agentcompile.interchange import archive
from agentcompile.ir.codec import encode
from agentcompile.ir.target import Target
from agentcompile.options import Options, resolve
from agentcompile.runs.folders import resuming
from agentcompile.runs.resumed import stored_options
from agentcompile.runs.status import status_of
from agentcompile.runs.tables import amount


def runs_pack(flags: Mapping[str, object], name: str, out: Path | None, *, screen: Screen) -> int:
    """Write one run to one file: `out`, or a file with the run's name in the current folder."""
    run = named(resolve(flags).options, name)
    file = out or Path(run.path.resolve().name + archive.ENDING)
    packed = archive.pack(run, stored_options(run), file.absolute())
    files = ", ".join(f"{part} {amount(size)}" for part, size in packed.files.items())
    screen.text(f"{packed.file}: {amount(packed.bytes)} ({files})")
    screen.json({"run": str(run.path), "file": str(packed.file), "bytes": packed.bytes, "files": dict(packed.files)})
    screen.next(f"agentcompile runs unpack {quote(str(packed.file))}")
    return 0


def runs_unpack(flags: Mapping[str, object], file: Path, *, screen: Screen, flow: Flow = REAL) -> int:
    """Make a run directory from an archive, with the paths of this machine; warn of what would prevent resuming."""
    asked = resolve(flags).options
    contents = archive.read(file)
    path = Path(asked.run_dir) if asked.run_dir else asked.runs / contents.name
    options = _moved(contents.options, asked, flags)
    run = archive.unpack(contents, path, options)
    state = contents.state
    status = status_of(state, alive=False)
    screen.text(f"{run.path}: {status}, {state.counts.total} trials; its lock will be {options.out}")
    warnings = list(_warnings(options, state.target, flow))
    for warning in warnings:
        screen.say(f"warning: {warning}")
    if state.status != "finished":
        screen.text(f"resume with: {resuming(run.path)}")
    screen.json(
        {
            "run": str(run.path),
            "status": status,
            "trials": state.counts.total,
            "model": options.model,
            "out": options.out,
            "warnings": [*warnings],
        }
    )
    return 0


def _moved(packed: Options, asked: Options, flags: Mapping[str, object]) -> Options:
    """Return the run's options for this machine.

    The paths that are written come from here alone: an archive names no file to write. The paths that are read
    (checkpoint, templates) stay, unless a flag says where they lie now.
    """
    return replace(
        packed,
        model=asked.model if flags.get("model") else packed.model,
        templates=asked.templates if flags.get("templates") else packed.templates,
        out=asked.out,
        run_dir=asked.run_dir,
        home=asked.home,
    )


def _warnings(options: Options, target: Target | None, flow: Flow) -> Iterator[str]:
    if not is_here(options.model):
        yield f"{options.model}: the checkpoint is not here; to resume the run, unpack it with --model"
    for folder in options.templates:
        if not Path(folder).is_dir():
            yield f"{folder}: these templates are not here; to resume the run, unpack it with --templates"
    if target is None:
        return
    try:
        here = flow.target(options)
    except AgentCompileError as error:
        yield f"{error.message}; {error.hint}"
        return
    if here.digest != target.digest:
        field, there, now = _difference(target, here)
        yield f"another kind of machine: {field} was {there} and is {now}; what was measured there counts for nothing"


def _difference(there: Target, here: Target) -> tuple[str, str, str]:
    one, other = encode(there), encode(here)
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    field = next(name for name in one if one[name] != other[name])
    return field, str(one[field]), str(other[field])
