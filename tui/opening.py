"""The opening of what a person named: a model to compile, a run to follow or to show again, or a lock."""

from __future__ import annotations

from pathlib import Path

from agentcompile.control.desk import deliver
from agentcompile.errors import AgentCompileError
from agentcompile.options import Options, resolve
from agentcompile.refine.provenance import authors
from agentcompile.runs.recorded_searches import RecordedSearches
from agentcompile.runs.session import RunDirectory, new_name

from . import compiler
from .feed import Feed
from .finding import What
from .flags import Flags, as_arguments
from .refine_session import RefineSession
from .session import Session


def opened(
    what: What,
    path: Path,
    options: Options,
    flags: Flags,
    *,
    speed: float = 0.0,
    recorded: RecordedSearches | None = None,
) -> Session:
    """Return a session on `path`; a model begins a new compile. The searches `recorded` are drawn behind its own.

    Raises:
        AgentCompileError: a setting is not allowed, a session of `refine` is to be shown at a speed, the run is of a
            newer version, or a folder cannot be written.
    """
    match what:
        case "lock":
            return Session(None, name=path.name, lock=path, deliver=deliver, store=options.store)
        case "run":
            told = RunDirectory.open(path).options()
            named = told.get("templates") if isinstance(told, dict) else None
            folders = [Path(str(one)) for one in named] if isinstance(named, list) else []
            return Session(
                Feed(path, speed=speed),
                name=path.name,
                deliver=deliver,
                store=options.store,
                recorded=recorded,
                authors=authors([*folders, options.written]),
            )
        case "refine":
            if speed:
                hint = "leave --speed out: its whole tree is shown"
                raise AgentCompileError(f"{path}: a session of `refine` is not shown again at a speed", hint=hint)
            return RefineSession(path, written=options.written, store=options.store)
        case "model":
            return _begun(str(path), options, flags, recorded)


def _begun(model: str, options: Options, flags: Flags, recorded: RecordedSearches | None) -> Session:
    asked = resolve({**flags, "model": model}).options
    run = Path(options.run_dir) if options.run_dir else new_name(options.runs, model)
    arguments = ["compile", model, "--review", "--run-dir", str(run), "--quiet", *as_arguments(flags)]
    process = compiler.start(run, arguments)
    return Session(
        Feed(run),
        name=run.name,
        lock=Path(asked.out),
        process=process,
        deliver=deliver,
        store=asked.store,
        recorded=recorded,
        authors=authors([*map(Path, asked.templates), asked.written]),
    )
